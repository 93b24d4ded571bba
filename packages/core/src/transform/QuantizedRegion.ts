// SPDX-License-Identifier: Apache-2.0
/**
 * Regions of quantized tensors: data and the scales that belong to it, or why there is no such region.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { elementCount, equalShapes, formatRegion, formatShape, type Region } from "../base/Region.ts"
import {
  layoutOf,
  mxBlockSize,
  type QuantizedTensor,
  recipeFault,
  recipeId,
  type ScaleRule,
  scaleShapeOf
} from "../tensor/QuantizedTensor.ts"
import { isContiguous, sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import { type TransformError, transformError } from "./ReshardTransform.ts"
import { scaleMatrixOf, swizzledLength } from "./ScaleSwizzle.ts"

/** The smallest region of whole blocks around a region of a tensor whose last dimension is whole blocks. */
export const blockHull = (region: Region): Region =>
  region.map(([start, end], dim): readonly [number, number] =>
    dim < region.length - 1
      ? [start, end]
      : [Math.floor(start / mxBlockSize) * mxBlockSize, Math.ceil(end / mxBlockSize) * mxBlockSize]
  )

const isAligned = (region: Region): boolean => {
  const last = region.at(-1)
  return last !== undefined && (last[0] === last[1] || (last[0] % mxBlockSize === 0 && last[1] % mxBlockSize === 0))
}

/** The region of row-major scales that belongs to a region of whole blocks. */
export const scaleRegion = (region: Region): Region =>
  region.map(([start, end], dim): readonly [number, number] =>
    dim < region.length - 1 ? [start, end] : [Math.floor(start / mxBlockSize), Math.ceil(end / mxBlockSize)]
  )

const unsupported = (paramName: string, detail: string, remedy: string): TransformError =>
  transformError("UnsupportedTensor", { paramName, detail, remedy })

/** What is wrong with a quantized tensor as such, or against the rule that is asked for. */
export const quantizedTensorFault = (
  paramName: string,
  { data, scale, recipe }: QuantizedTensor,
  rule?: ScaleRule
): TransformError | undefined => {
  const unknown = recipeFault(recipe)
  if (unknown !== undefined) {
    return unsupported(
      paramName,
      `The tensor is quantized, and ${unknown}.`,
      "Send it dequantized, or as bytes of one type."
    )
  }
  if (rule !== undefined && recipe.rule !== rule) {
    return transformError("RecipeMismatch", {
      paramName,
      detail: `The tensor has the recipe ${recipeId(recipe)}, the transform quantizes by ${rule}.`,
      remedy: "Name the tensor's own rule, or quantize at the receiving end."
    })
  }
  const scales = scaleShapeOf(data.shape)
  if (scales === undefined || data.dtype !== "float8_e4m3fn" || scale.dtype !== "float8_e8m0fnu") {
    const what = `${data.dtype}${formatShape(data.shape)} with scales of ${scale.dtype}`
    return unsupported(paramName, `${what} is not ${recipeId(recipe)}.`, "Correct the tensor or its recipe.")
  }
  const isSwizzled = layoutOf(recipe) === "swizzled"
  const wanted = isSwizzled ? [swizzledLength(...scaleMatrixOf(scales))] : scales
  if (!equalShapes(scale.shape, wanted) || (isSwizzled && !isContiguous(scale))) {
    return unsupported(
      paramName,
      `Data ${formatShape(data.shape)} has ${elementCount(wanted)} scales ${formatShape(wanted)} in the layout ` +
        `${layoutOf(recipe)}, not ${elementCount(scale.shape)} ${formatShape(scale.shape)}.`,
      "Name the layout that the scales have: recipes are part of a tensor's type."
    )
  }
  return undefined
}

const refusedCut = (paramName: string, region: Region): TransformError =>
  transformError("UnalignedRegion", {
    paramName,
    detail: `The region ${formatRegion(region)} cuts blocks of ${mxBlockSize} elements along the last dimension.`,
    remedy: `Cut at whole blocks: the nearest region is ${formatRegion(blockHull(region))}.`
  })

/** Nothing, where a region is of whole blocks. */
export const checkAligned = (paramName: string, region: Region): Effect.Effect<void, TransformError> =>
  isAligned(region) ? Effect.void : Effect.fail(refusedCut(paramName, region))

/** Data and row-major scales of a region. Other layouts have no regions. */
export const quantizedRegion = (
  paramName: string,
  { data, scale, recipe }: QuantizedTensor,
  region: Region
): Effect.Effect<QuantizedTensor, TransformError> => {
  if (layoutOf(recipe) !== "rowMajor") {
    return Effect.fail(
      unsupported(
        paramName,
        `Scales in the layout ${layoutOf(recipe)} cannot be sliced: a part of them is not the scales of a part.`,
        "Use the mxfp8 transform, which brings them into rows, slices, and swizzles again."
      )
    )
  }
  if (!isAligned(region)) return Effect.fail(refusedCut(paramName, region))
  const parts = Result.all([sliceTensor(data, region), sliceTensor(scale, scaleRegion(region))])
  return Result.isSuccess(parts)
    ? Effect.succeed({ _tag: "QuantizedTensor", data: parts.success[0], scale: parts.success[1], recipe })
    : Effect.fail(unsupported(paramName, parts.failure.detail, "Make the plan again for these tensors."))
}

/** A view of a tensor of `shape` that is `whole` of it. */
export const wholeRegion = (tensor: Tensor): Region =>
  tensor.shape.map((length): readonly [number, number] => [0, length])
