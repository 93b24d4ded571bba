// SPDX-License-Identifier: Apache-2.0
/**
 * A model in the quantized form that a conversion asks for, with the configuration that says so.
 *
 * Invariant: the process that plans and the ranks that read see the same tensors and the same configuration.
 */

import { elementCount } from "@tensorferry/core/base/Region"
import { exchangePayloads } from "@tensorferry/core/group/Exchange"
import type { ProcessGroupError, ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { type Conversion, typeRuleOf } from "../conversion.ts"
import { readModelConfig } from "../inputs/ConfigFile.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import type { ModelConfig } from "../structure/ModelConfig.ts"
import { isOneForAll, largestOf, quantizedModel, quantizedTensors } from "./QuantizedModel.ts"
import { type Selection, selectWeights } from "./selection.ts"
import { quantizationConfigOf } from "./writtenConfig.ts"

/** What a conversion makes of a model's weights, and what its config.json says of them. */
export interface Quantized {
  readonly selection: Selection
  readonly config: Readonly<Record<string, unknown>>
}

/** What a conversion quantizes; undefined where it quantizes nothing here. */
export const chooseQuantized = (
  model: Model,
  conversion: Conversion | undefined
): Effect.Effect<Quantized | undefined, ModelError> =>
  Effect.gen(function* () {
    const choice = conversion?.quantize
    if (conversion === undefined || choice === undefined) return undefined
    const read = yield* readModelConfig(model)
    const config = read === undefined ? undefined : Result.getOrUndefined(read)
    const isKept = (name: string) => typeRuleOf(conversion, name) !== undefined
    const selection = yield* Effect.fromResult(selectWeights(model.tensors, config, choice, isKept))
    const isBlocks = selection.weights.some(({ isSwapped }) => isSwapped)
    return { selection, config: quantizationConfigOf(choice, selection.kept, isBlocks) }
  })

const described = (model: Model, { config }: Quantized) =>
  Effect.map(readModelConfig(model), (read) => {
    const own = read === undefined ? undefined : Result.getOrUndefined(read)
    return own === undefined ? {} : { config: { ...own, quantization_config: config } as ModelConfig }
  })

/** The model as plans see it: names, types and shapes. What reads it is `readQuantized`. */
export const planQuantized = (model: Model, quantized: Quantized | undefined): Effect.Effect<Model> =>
  quantized === undefined
    ? Effect.succeed(model)
    : Effect.map(described(model, quantized), (config) => ({
        ...model,
        ...config,
        tensors: quantizedTensors(model.tensors, quantized.selection.weights),
        digestOf: () => undefined,
        readRegion: (name) =>
          Effect.fail(
            modelError("Unsupported", {
              paramName: name,
              detail: "It is quantized by the ranks, and this process has no engine.",
              remedy: "Read it in a rank of the job."
            })
          )
      }))

/**
 * Largest magnitudes by group. Each rank finds those of some groups, the largest first in turn, and all learn all of them: a
 * collective.
 */
const surveyMaxima = (
  group: ProcessGroupShape,
  model: Model,
  { weights }: Selection
): Effect.Effect<ReadonlyMap<string, number>, CheckpointError | ModelError | ProcessGroupError, TensorEngine> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const members = Map.groupBy(weights.filter(isOneForAll), (weight) => weight.group)
    if (members.size === 0) return new Map()
    const sizeOf = (name: string) => members.get(name)!.reduce((sum, { shape }) => sum + elementCount(shape), 0)
    const names = [...members.keys()].sort((a, b) => sizeOf(b) - sizeOf(a) || (a < b ? -1 : 1))
    const own: Array<number> = []
    for (let at = group.rank; at < names.length; at += group.size) {
      const name = names[at]!
      own.push(
        yield* Effect.catchTag(largestOf(engine, model, members.get(name)!), "TensorError", (error) =>
          Effect.fail(modelError("Unsupported", { ...error.reason, paramName: name }))
        )
      )
    }
    const payloads = {
      encode: (values: ReadonlyArray<number>) => new Uint8Array(Float32Array.from(values).buffer),
      decodeAll: (all: ReadonlyArray<Uint8Array>) => {
        const found = new Map<string, number>()
        for (const [at, name] of names.entries()) {
          const bytes = all[at % group.size]!
          const place = 4 * Math.floor(at / group.size)
          if (bytes.length < place + 4) return Result.fail(unread(at % group.size, name))
          found.set(name, new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getFloat32(place, true))
        }
        return Result.succeed<ReadonlyMap<string, number>>(found)
      }
    }
    return yield* exchangePayloads(group, "largest magnitudes", payloads, own)
  })

const unread = (rank: number, name: string): ModelError =>
  modelError("Unsupported", {
    rank,
    paramName: name,
    detail: "The rank did not say the largest magnitude that it was to find.",
    remedy: "Start all ranks with one version."
  })

/** The model as a rank of a job reads it. All ranks of the group call this together. */
export const readQuantized = (model: Model, quantized: Quantized | undefined, group: ProcessGroupShape) =>
  Effect.gen(function* () {
    if (quantized === undefined) return model
    const { selection } = quantized
    const known = yield* surveyMaxima(group, model, selection)
    return { ...(yield* quantizedModel(model, selection.weights, known)), ...(yield* described(model, quantized)) }
  })
