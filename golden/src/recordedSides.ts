// SPDX-License-Identifier: Apache-2.0
/**
 * Sides of a model as recorded by running a trainer and an engine on numbered tensors: what each of their ranks holds, which
 * nobody here wrote. Numbers are exact as float32.
 */
import { mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import type { Shape } from "@tensorferry/core/base/Region"
import { elementCount } from "@tensorferry/core/base/Region"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import { type Named, type RecordedNames, type RecordedRank, recordedMaps, siteOf } from "./nameMappings.ts"
import { readGolden } from "./readGolden.ts"

const systems: { readonly [engine: string]: RecordedNames } = {
  megatron: readGolden("names_megatron") as RecordedNames,
  vllm: readGolden("names_vllm") as RecordedNames,
  sglang: readGolden("names_vllm", "names_sglang") as RecordedNames
}

/** A tensor of a rank: numbers of elements of the checkpoint, 0 for a zero, less than 0 for what nobody writes. */
export interface RecordedTensor {
  readonly name: string
  readonly shape: Shape
  readonly numbers: Int32Array
  /** What values go through on their way from the checkpoint, as `add -1`. */
  readonly ops: ReadonlyArray<string>
}

/** All ranks of one recorded layout, in order. */
export interface RecordedSide {
  readonly sources: Named
  readonly config: ModelConfig
  /** As a client states it. */
  readonly names: string
  readonly placement: { readonly vocabulary?: { readonly multipleOf: number; readonly of: "share" } }
  readonly ranks: ReadonlyArray<ReadonlyArray<RecordedTensor>>
}

const tensorsOf = (one: RecordedRank, sources: Named): ReadonlyArray<RecordedTensor> =>
  [...recordedMaps(one, sources)].flatMap(([name, { shape, numbers, ops }]) =>
    numbers.length > 0 && numbers.every((number) => number === -1) ? [] : [{ name, shape, numbers, ops }]
  )

/** The ranks of a family whose recordings have this beginning, as `llama/tp2`. */
export const recordedSide = (engine: string, family: string, cases: string): RecordedSide => {
  const found = systems[engine]!.families.find((one) => one.family === family && one.variant === undefined)!
  const own = found.cases
    .filter(({ id }) => id.replace(/\/?r(ank)?\d+/, "") === `${family}/${cases}`)
    .sort((a, b) => siteOf(a).rank - siteOf(b).rank)
  const { config } = siteOf(own[0]!)
  const degrees = Object.entries(config).map(([name, degree]) => `${name}=${degree}`)
  const divisor = own[0]!.vocab_divisor
  const sources = own[0]!.sources ?? found.sources
  return {
    sources,
    config: found.hf_config,
    names: `${engine}:${degrees.join()}`,
    placement: divisor === undefined ? {} : { vocabulary: { multipleOf: divisor, of: "share" } },
    ranks: own.map((one) => tensorsOf(one, sources))
  }
}

/** A checkpoint of names and shapes with a config.json; values are zeros, which nobody is to read. */
export const writeModel = (folder: string, sources: Named, config: ModelConfig): string => {
  const target = join(folder, "model")
  let end = 0
  const header = Object.fromEntries(
    sources.map(([name, shape]) => {
      const start = end
      end += 4 * elementCount(shape)
      return [name, { dtype: "F32", shape, data_offsets: [start, end] }]
    })
  )
  const text = new TextEncoder().encode(JSON.stringify(header))
  const bytes = new Uint8Array(8 + text.length + end)
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true)
  bytes.set(text, 8)
  mkdirSync(target, { recursive: true })
  writeFileSync(join(target, "model.safetensors"), bytes)
  writeFileSync(join(target, "config.json"), JSON.stringify(config))
  return target
}
