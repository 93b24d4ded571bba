// SPDX-License-Identifier: Apache-2.0
/** A rank's own tensors under the names of a plan between conventions: views, nothing is copied. */
import { bitsOf } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import {
  isQuantized,
  layoutOf,
  type QuantizedTensor,
  recipeId,
  scaleShapeOf,
  shapeOfValues
} from "@tensorferry/core/tensor/QuantizedTensor"
import { isContiguous, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { type TensorDict, tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Result from "effect/Result"
import { MappingError, mappingError } from "./MappingError.ts"
import type { MappedRank } from "./mapModel.ts"
import type { MappedParameter } from "./mappedLayouts.ts"
import { type ElementView, quantizedView } from "./quantizedView.ts"

type Views = ReadonlyMap<string, Tensor | QuantizedTensor>

const refuse = (
  kind: "missing_source" | "shape_mismatch" | "unsupported",
  name: string,
  detail: string
): Result.Result<never, MappingError> =>
  mappingError(kind, name, undefined, detail, "Hand over the tensors as the convention names them.")

/** What is wrong with a tensor of a rank; undefined where it is as the convention has it. */
const faultOf = ({ name, shape, dtype }: MappedRank["tensors"][number], tensors: Views) => {
  const own = tensors.get(name)
  if (own === undefined) return refuse("missing_source", name, "The rank holds no such tensor.")
  const data = isQuantized(own) ? own.data : own
  const found = shapeOfValues(own)
  if (!equalShapes(found, shape) || (!isQuantized(own) && own.dtype !== dtype))
    return refuse(
      "shape_mismatch",
      name,
      `It is ${isQuantized(own) ? recipeId(own.recipe) : own.dtype}${formatShape(found)}, the convention has ${dtype}${formatShape(shape)} here.`
    )
  if (!isContiguous(data)) return refuse("unsupported", name, "Its elements do not lie densely.")
  if (!isQuantized(own)) return undefined
  const scales = layoutOf(own.recipe) === "rowMajor" ? scaleShapeOf(own.recipe, shape) : undefined
  return scales !== undefined && equalShapes(own.scale.shape, scales) && isContiguous(own.scale)
    ? undefined
    : refuse("unsupported", name, "Its scales do not lie row by row, one for each block.")
}

const viewOf = (tensor: Tensor, name: string, { offset, shape, strides }: ElementView, part: string) => {
  const bits = offset * bitsOf(tensor.dtype)
  if (bits % 8 !== 0) return refuse("unsupported", name, `Part ${part} begins inside a byte.`)
  const made = tensorView(tensor.storage, tensor.dtype, shape, { strides, byteOffset: tensor.byteOffset + bits / 8 })
  return Result.mapError(
    made,
    ({ detail }) =>
      new MappingError({
        kind: "unsupported",
        subject: name,
        detail: `Part ${part}: ${detail}.`,
        remedy: "Hand over the tensors as the convention names them."
      })
  )
}

/**
 * Views of a rank's tensors, by the parameters of the plan. Quantized tensors are views of data and scales alike. Fails with
 * the tensor that is missing, or that has another shape or type than the convention says, or whose elements do not lie
 * densely, and with a part that cuts a block of scales.
 */
export const mappedDict = (
  rank: MappedRank,
  parameters: ReadonlyArray<MappedParameter>,
  tensors: Views
): Result.Result<TensorDict, MappingError> =>
  Result.gen(function* () {
    for (const tensor of rank.tensors) {
      const fault = faultOf(tensor, tensors)
      if (fault !== undefined) return yield* fault
    }
    const views: Array<readonly [string, Tensor | QuantizedTensor]> = []
    for (const { metadata, view } of parameters) {
      const own = tensors.get(view.tensor)!
      if (!isQuantized(own)) {
        views.push([metadata.name, yield* viewOf(own, view.tensor, view, metadata.name)])
        continue
      }
      const parts = quantizedView(own.recipe, shapeOfValues(own), view)
      if (parts === undefined)
        return yield* refuse("unsupported", view.tensor, `Part ${metadata.name} cuts a block of its scales.`)
      const data = yield* viewOf(own.data, view.tensor, parts.codes, metadata.name)
      const scale = yield* viewOf(own.scale, view.tensor, parts.scales, metadata.name)
      views.push([metadata.name, { ...own, data, scale }])
    }
    return tensorDict(views)
  })
