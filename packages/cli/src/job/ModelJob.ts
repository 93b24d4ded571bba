// SPDX-License-Identifier: Apache-2.0
/** All tensors of a checkpoint between parallel layouts: what one rank holds, and the plan that moves it. */

import type { EstimateOptions } from "@tensorferry/core/planner/Estimate"
import { mxfp8Recipe, type QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import { sliceTensor, type Tensor } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import { mxfp8 } from "@tensorferry/core/transform/Quantize"
import { scaleHull } from "@tensorferry/core/transform/QuantizedRegion"
import type { ReshardTransform } from "@tensorferry/core/transform/ReshardTransform"
import { convertedModel } from "@tensorferry/model/ConvertedModel"
import { type Conversion, convertedRules, isQuantized, scaleNameOf } from "@tensorferry/model/conversion"
import { type HeldTensor, viewFault } from "@tensorferry/model/HeldTensors"
import type { LocalParameter } from "@tensorferry/model/layout/ModelLayout"
import { type JobLayouts, jobLayouts } from "@tensorferry/model/layouts"
import type { Model } from "@tensorferry/model/Model"
import { type ConfigChanges, companionsOf } from "@tensorferry/model/outputs/companions"
import { planDigestProof } from "@tensorferry/model/proof/proveDigests"
import { proveLayout } from "@tensorferry/model/proof/proveLayout"
import { quantizeBufferBytes, quantizedDestinationBytes } from "@tensorferry/model/quantize/bufferBytes"
import { writeShards } from "@tensorferry/model/ShardWriter"
import { findWeights } from "@tensorferry/model/values/ValueForm"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { JobSpec } from "./JobSpec.ts"
import type { PreparedJob } from "./PreparedJob.ts"

/** Views of the tensors under the names of the plan. */
const toDict = Effect.fnUntraced(function* (
  held: ReadonlyArray<HeldTensor>,
  parameters: ReadonlyArray<LocalParameter>,
  conversion?: Conversion
) {
  const tensors = new Map(held.map(({ local, tensor }) => [local.name, tensor]))
  const views: Array<readonly [string, Tensor | QuantizedTensor]> = []
  const aliases = new Map<string, string>()
  for (const { metadata, tensor: name, view } of parameters) {
    if (metadata.aliasOf !== null) {
      aliases.set(metadata.name, metadata.aliasOf)
      continue
    }
    const sliced = sliceTensor(tensors.get(name)!, view)
    if (Result.isFailure(sliced)) return yield* viewFault(metadata.ownerRank, metadata.name, sliced.failure.detail)
    const scales = conversion?.transform == null ? undefined : tensors.get(scaleNameOf(name))
    if (scales === undefined || conversion?.transform == null) {
      views.push([metadata.name, sliced.success])
      continue
    }
    const recipe = mxfp8Recipe(conversion.transform.rule)
    const scale = sliceTensor(scales, scaleHull(recipe, view))
    if (Result.isFailure(scale)) return yield* viewFault(metadata.ownerRank, metadata.name, scale.failure.detail)
    views.push([metadata.name, { _tag: "QuantizedTensor", data: sliced.success, scale: scale.success, recipe }])
  }
  return tensorDict(views, { aliases })
})

/** The transform of a job, for the parameters that end quantized on any rank. */
const transformOf = (
  { conversion }: JobSpec,
  names: ReadonlySet<string>
): { readonly transform?: ReshardTransform } => {
  if (conversion?.transform == null) return {}
  const { rule, side } = conversion.transform
  return { transform: { ...mxfp8({ rule, side }), shouldTransform: (paramName) => names.has(paramName) } }
}

/** Names of the plan's parameters that end quantized, the same on every rank. */
const quantizedNames = (conversion: Conversion | undefined, layouts: JobLayouts, model: Model): ReadonlySet<string> => {
  const chosen = new Set(model.tensors.filter((tensor) => isQuantized(conversion, tensor)).map(({ name }) => name))
  const names = new Set<string>()
  // Listing what all ranks hold takes seconds for a large model.
  if (chosen.size === 0) return names
  for (const rank of layouts.destination.ranks) {
    const stored = new Map(layouts.destination.tensorsOf(rank).map(({ name, storedAs }) => [name, storedAs]))
    for (const { metadata, tensor } of layouts.destination.parametersOf(rank))
      if (chosen.has(stored.get(tensor) ?? "")) names.add(metadata.name)
  }
  return names
}

const transformEstimate = (conversion: Conversion | undefined, quantized: ReadonlySet<string>): EstimateOptions => {
  if (conversion?.transform == null) return {}
  const { rule, side } = conversion.transform
  const [recipe, parameters] = [mxfp8Recipe(rule), [...quantized]]
  return {
    transformBytes: quantizeBufferBytes({ side, recipe, parameters }),
    destinationBytes: quantizedDestinationBytes(recipe, parameters)
  }
}

/** What the transform of a conversion allocates, for estimates of plans that nobody runs yet. */
export const conversionEstimate = (conversion: Conversion | undefined, layouts: JobLayouts, model: Model) =>
  transformEstimate(conversion, quantizedNames(conversion, layouts, model))

/** What a configuration that is carried along has to say of the output. */
const configChanges = (
  { conversion }: JobSpec,
  { tensors }: Model,
  quantization: ConfigChanges["quantization"]
): ConfigChanges => {
  if (quantization !== undefined) {
    return { quantization, ...(conversion?.dtype == null ? {} : { dtype: conversion.dtype }) }
  }
  if (conversion?.transform !== null || conversion.dtype === null) return {}
  const isDequantized = findWeights(tensors).every(({ form }) => form.kind === "plain" || form.kind === "opaque")
  return { dtype: conversion.dtype, ...(isDequantized ? { isDequantized } : {}) }
}

/** This rank's part of a job. */
export const prepareModelJob = Effect.fnUntraced(function* (
  spec: JobSpec,
  model: Model,
  rank: number,
  quantization?: ConfigChanges["quantization"]
) {
  const layouts = yield* Effect.fromResult(jobLayouts(model.tensors, spec))
  if (rank >= layouts.size) return { size: layouts.size, part: undefined }
  const quantized = quantizedNames(spec.conversion, layouts, model)
  const parameters = layouts.destination.parametersOf(rank)
  const names = new Map(parameters.map(({ metadata, tensor }) => [metadata.name, tensor]))
  const shapes = new Map(layouts.result.tensors.map(({ name, shape }) => [name, shape]))
  const { out } = spec
  const part: PreparedJob = {
    plan: layouts.planFor(rank),
    source: layouts.source.tensorsOf(rank),
    destination: layouts.result.tensorsOf(rank),
    dicts: (source, destination) =>
      Effect.all([toDict(source, layouts.source.parametersOf(rank)), toDict(destination, parameters, spec.conversion)]),
    ...transformOf(spec, quantized),
    proof: yield* convertedModel(model, spec.conversion),
    ...(layouts.result.ranks.includes(rank)
      ? {
          prove: () =>
            proveLayout(
              layouts.result,
              layouts.result.tensors,
              convertedRules(spec.rules, spec.conversion),
              rank,
              spec.prove ?? "sample"
            )
        }
      : {}),
    ...(spec.conversion === undefined ? { digests: () => planDigestProof(layouts.source, layouts.result) } : {}),
    estimate: transformEstimate(spec.conversion, quantized),
    tensorOf: (paramName) => names.get(paramName) ?? paramName,
    shapeOf: ({ storedAs, shape }) => shapes.get(storedAs) ?? shape,
    ...(out === null
      ? {}
      : {
          write: (held, verified, progress) =>
            writeShards(
              {
                out,
                config: spec.to,
                rules: convertedRules(spec.rules, spec.conversion),
                companions:
                  out.copyMetadata === true
                    ? companionsOf(model, configChanges(spec, model, quantization))
                    : Effect.succeed([])
              },
              layouts.result,
              model,
              held,
              verified,
              progress
            )
        })
  }
  return { size: layouts.size, part }
})
