// SPDX-License-Identifier: Apache-2.0
/** A checkpoint between the names of two systems: what one rank holds under its own names, and the plan that moves it. */
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { fullRegion } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import type { TensorDict } from "@tensorferry/core/tensor/TensorDict"
import { type HeldTensor, viewFault } from "@tensorferry/model/HeldTensors"
import type { LocalTensor } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import { assembledModel } from "@tensorferry/model/names/AssembledModel"
import { writeRank } from "@tensorferry/model/names/files/RankWriter"
import type { MappedRank } from "@tensorferry/model/names/mapModel"
import { mappedDict } from "@tensorferry/model/names/mappedDict"
import type { MappedLayout } from "@tensorferry/model/names/mappedLayouts"
import type { NamedChoice } from "@tensorferry/model/names/NamedSide"
import { namedLayouts } from "@tensorferry/model/names/namedLayouts"
import { linearStrip } from "@tensorferry/model/names/Strips"
import { scalarTransform } from "@tensorferry/model/names/scalarTransform"
import { companionsOf } from "@tensorferry/model/outputs/companions"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { JobSpec } from "./JobSpec.ts"
import type { PreparedJob } from "./PreparedJob.ts"

/** Tensors that a rank holds in full under its own names; those that are whole on other ranks too are written there again. */
const localsOf = ({ tensors }: MappedRank): ReadonlyArray<LocalTensor> =>
  tensors.map(({ name, dtype, shape }) => ({
    name,
    dtype,
    shape,
    pieces: [{ local: fullRegion(shape), global: fullRegion(shape) }],
    padding: undefined,
    storedAs: name,
    aliasOf: undefined,
    isPrimary: true
  }))

/** Zeros are nobody's to send: they are set before anything arrives. */
const clearZeros = Effect.fnUntraced(function* ({ tensors }: MappedRank, held: ReadonlyMap<string, HeldTensor>) {
  const engine = yield* TensorEngine
  for (const { name, shape, strips } of tensors) {
    const { tensor } = held.get(name)!
    for (const strip of strips) {
      if (strip.source !== undefined) continue
      const { at, loops } = linearStrip(strip, shape)
      const view = tensorView(
        tensor.storage,
        tensor.dtype,
        loops.map(([count]) => count),
        {
          strides: loops.map(([, step]) => step),
          byteOffset: tensor.byteOffset + byteLengthOf(tensor.dtype, at)
        }
      )
      if (Result.isFailure(view)) return yield* viewFault(0, name, view.failure.detail)
      yield* engine.fill(view.success, 0)
    }
  }
})

const dictOf = (
  layout: MappedLayout,
  rank: number,
  held: ReadonlyArray<HeldTensor>
): Effect.Effect<TensorDict | undefined, ModelError> => {
  const own = layout.rankOf(rank)
  if (own.tensors.length === 0) return Effect.succeed(undefined)
  const tensors = new Map(held.map(({ local, tensor }) => [local.name, tensor]))
  return Effect.fromResult(
    Result.mapError(mappedDict(own, layout.parametersOf(rank), tensors), ({ message, subject }) =>
      modelError("InvalidLayout", { rank, paramName: subject, detail: message, remedy: "Correct the mapping." })
    )
  )
}

/** This rank's part of a job between names. */
export const prepareNamedJob = Effect.fnUntraced(function* (
  spec: JobSpec,
  names: NamedChoice,
  model: Model,
  rank: number
) {
  const layouts = yield* Effect.fromResult(namedLayouts(model.tensors, names))
  if (rank >= layouts.size) return { size: layouts.size, part: undefined }
  const { source, destination } = layouts
  const into = destination.rankOf(rank)
  const tensors = new Map(destination.parametersOf(rank).map(({ metadata, view }) => [metadata.name, view.tensor]))
  const { out } = spec
  const part: PreparedJob = {
    plan: layouts.planFor(rank),
    source: localsOf(source.rankOf(rank)),
    destination: localsOf(into),
    input: assembledModel(model, source.rankOf(rank).tensors),
    proof: assembledModel(model, into.tensors),
    transform: scalarTransform(layouts.scalarOf),
    dicts: (held, made) => Effect.all([dictOf(source, rank, held), dictOf(destination, rank, made)]),
    clear: (made) => clearZeros(into, new Map(made.map((one) => [one.local.name, one]))),
    estimate: {},
    tensorOf: (paramName) => tensors.get(paramName) ?? paramName,
    shapeOf: ({ shape }) => shape,
    ...(out === null
      ? {}
      : {
          write: (held, verified, progress) =>
            writeRank(
              {
                out,
                companions: out.copyMetadata === true ? companionsOf(model, {}) : Effect.succeed([]),
                side: names.to,
                family: names.family
              },
              model,
              destination.ranks.includes(rank) ? rank - destination.ranks[0]! : undefined,
              held,
              verified,
              progress
            )
        })
  }
  return { size: layouts.size, part }
})
