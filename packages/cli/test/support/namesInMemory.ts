// SPDX-License-Identifier: Apache-2.0
/** What our mapping makes of a model's files against what transformers holds after loading them, and the files against the way back. */
import { join } from "node:path"
import type { Cutting } from "@tensorferry/model/Cutting"
import { placeOf } from "@tensorferry/model/layout/ParallelConfig"
import { transformers } from "@tensorferry/model/names/conventions/transformers"
import { wayBackOf } from "@tensorferry/model/names/inverse"
import { mapModel } from "@tensorferry/model/names/mapModel"
import { materialize } from "@tensorferry/model/names/materialize"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import * as Result from "effect/Result"
import { modelFiles, readSafetensors } from "./safetensorsFile.ts"

const config = { tp: 1, pp: 1, dp: 1 }

/** The first difference in one line; undefined where there is none. */
export const memoryFault = (folder: string, family: NonNullable<Cutting["family"]>): string | undefined => {
  const files = modelFiles(folder)
  const memory = readSafetensors(join(folder, "memory.safetensors"))
  const tensors = [...files.values()]
  const fault = Result.gen(function* () {
    const structure = yield* structureOf(tensors, family)
    // A class for the text alone has no head, and its files have its names.
    const isHeadless = /TextModel$/.test(String(family.config?.architectures))
    const mapping = transformers.mapping(structure, { stages: 1, tp: 1, ...(isHeadless ? { headless: true } : {}) })
    const model = yield* mapModel({ structure, tensors, mapping, config, placement: {} })
    const { tensors: made, aliases } = yield* model.rankAt(placeOf(config, 0, 0))
    const own = new Map(made.map((tensor) => [tensor.name, tensor]))
    for (const [name, { bytes, shape }] of memory) {
      const tensor = own.get(aliases.get(name) ?? name)
      if (tensor === undefined) return `${name} is not made`
      if (tensor.shape.join() !== shape.join()) return `${name} is [${tensor.shape}], in memory [${shape}]`
      const filled = yield* materialize(tensor, (source) => files.get(source)!.bytes)
      if (Buffer.compare(filled, bytes) !== 0) return `${name} has other bytes`
    }
    for (const name of own.keys()) if (!memory.has(name)) return `${name} is made, and not in memory`
    for (const tensor of yield* wayBackOf(model, made, tensors)) {
      const filled = yield* materialize(tensor, (source) => memory.get(source)!.bytes)
      if (Buffer.compare(filled, files.get(tensor.name)!.bytes) !== 0)
        return `${tensor.name} comes back with other bytes`
    }
    return undefined
  })
  return Result.isFailure(fault) ? fault.failure.message : fault.success
}
