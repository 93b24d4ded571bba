// SPDX-License-Identifier: Apache-2.0
/**
 * Regions of quantized tensors: codes and the scales that belong to them, or why there is no such region.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { elementCount, equalShapes, formatRegion, formatShape, type Region, type Shape } from "../base/Region.ts"
import {
  blockCount,
  blockSizesOf,
  codesPerByte,
  codeTypeOf,
  cutSizeOf,
  hasGlobal,
  layoutOf,
  type QuantizationRecipe,
  type QuantizedTensor,
  recipeFault,
  recipeId,
  scaleShapeOf,
  scaleTypesOf,
  shapeOfValues
} from "../tensor/QuantizedTensor.ts"
import { isContiguous, sliceTensor } from "../tensor/Tensor.ts"
import { type TransformError, transformError } from "./ReshardTransform.ts"
import { laidOutShape } from "./ScaleLayouts.ts"

/** The smallest region of whole blocks around a region of a tensor of this shape. Blocks at the edge are cut by it. */
export const blockHull = (recipe: QuantizationRecipe, region: Region, shape: Shape): Region => {
  const sizes = blockSizesOf(cutSizeOf(recipe), shape.length)
  return region.map(([start, end], dim): readonly [number, number] => {
    const [size, length] = [sizes[dim]!, shape[dim]!]
    if (size === 0) return [0, length]
    return [Math.floor(start / size) * size, Math.min(Math.ceil(end / size) * size, length)]
  })
}

/** Whether a region of a tensor of this shape has whole blocks only, or no element. */
export const isAligned = (recipe: QuantizationRecipe, region: Region, shape: Shape): boolean =>
  region.some(([start, end]) => start === end) ||
  blockHull(recipe, region, shape).every(([start, end], dim) => start === region[dim]![0] && end === region[dim]![1])

/** The region of row-major scales of the blocks that a region touches. */
export const scaleHull = ({ block }: QuantizationRecipe, region: Region): Region => {
  const sizes = blockSizesOf(block, region.length)
  return region.map(([start, end], dim): readonly [number, number] => {
    const size = sizes[dim]!
    return size === 0 ? [0, Number(end > start)] : [Math.floor(start / size), blockCount(end, size)]
  })
}

/** The region of codes that belongs to a region of values. */
export const codeRegion = (recipe: QuantizationRecipe, region: Region): Region => {
  const each = codesPerByte(recipe)
  return region.map(([start, end], dim): readonly [number, number] =>
    dim < region.length - 1 ? [start, end] : [Math.floor(start / each), Math.ceil(end / each)]
  )
}

const unsupported = (paramName: string, detail: string, remedy: string): TransformError =>
  transformError("UnsupportedTensor", { paramName, detail, remedy })

/** What is wrong with a quantized tensor as such, or against the recipe that is asked for. */
export const quantizedTensorFault = (
  paramName: string,
  tensor: QuantizedTensor,
  wanted?: QuantizationRecipe
): TransformError | undefined => {
  const { data, scale, global, recipe } = tensor
  const unknown = recipeFault(recipe)
  if (unknown !== undefined) {
    return unsupported(
      paramName,
      `The tensor is quantized, and ${unknown}.`,
      "Send it dequantized, or as bytes of one type."
    )
  }
  if (
    wanted !== undefined &&
    recipeId({ ...recipe, layout: "rowMajor" }) !== recipeId({ ...wanted, layout: "rowMajor" })
  ) {
    return transformError("RecipeMismatch", {
      paramName,
      detail: `The tensor has the recipe ${recipeId(recipe)}, the transform quantizes by ${wanted.rule}.`,
      remedy: "Name the tensor's own rule, or quantize at the receiving end."
    })
  }
  const shape = shapeOfValues(tensor)
  const scales = scaleShapeOf(recipe, shape)
  const isTyped = data.dtype === codeTypeOf(recipe) && scaleTypesOf(recipe).includes(scale.dtype)
  if (scales === undefined || !isTyped) {
    const what = `${data.dtype}${formatShape(data.shape)} with scales of ${scale.dtype}`
    return unsupported(paramName, `${what} is not ${recipeId(recipe)}.`, "Correct the tensor or its recipe.")
  }
  if (hasGlobal(recipe) && (global?.dtype !== "float32" || elementCount(global.shape) !== 1)) {
    return unsupported(paramName, "Its global scale is no float32 number.", "Give the tensor its global scale.")
  }
  const layout = layoutOf(recipe)
  const laid = laidOutShape(layout, scales)
  if (!equalShapes(scale.shape, laid) || (layout !== "rowMajor" && !isContiguous(scale))) {
    return unsupported(
      paramName,
      `Codes ${formatShape(data.shape)} have ${elementCount(laid)} scales ${formatShape(laid)} in the layout ` +
        `${layout}, not ${elementCount(scale.shape)} ${formatShape(scale.shape)}.`,
      "Name the layout that the scales have: recipes are part of a tensor's type."
    )
  }
  return undefined
}

const refusedCut = (paramName: string, recipe: QuantizationRecipe, region: Region, shape: Shape): TransformError => {
  const [rows, columns] = recipe.block
  const blocks =
    rows === 1 ? `of ${columns} elements along the last dimension` : recipe.block.map((size) => size || "all").join("x")
  return transformError("UnalignedRegion", {
    paramName,
    detail: `The region ${formatRegion(region)} cuts blocks ${blocks}.`,
    remedy: `Cut at whole blocks: the nearest region is ${formatRegion(blockHull(recipe, region, shape))}.`
  })
}

/** Nothing, where a region is of whole blocks. */
export const checkAligned = (
  paramName: string,
  recipe: QuantizationRecipe,
  region: Region,
  shape: Shape
): Effect.Effect<void, TransformError> =>
  isAligned(recipe, region, shape) ? Effect.void : Effect.fail(refusedCut(paramName, recipe, region, shape))

/** Codes and row-major scales of a region of values. Other layouts have no regions. */
export const quantizedRegion = (
  paramName: string,
  tensor: QuantizedTensor,
  region: Region
): Effect.Effect<QuantizedTensor, TransformError> => {
  const { data, scale, recipe } = tensor
  if (layoutOf(recipe) !== "rowMajor") {
    return Effect.fail(
      unsupported(
        paramName,
        `Scales in the layout ${layoutOf(recipe)} cannot be sliced: a part of them is not the scales of a part.`,
        "Use a transform that brings them into rows, slices, and lays them out again, as mxfp8 does."
      )
    )
  }
  const shape = shapeOfValues(tensor)
  if (!isAligned(recipe, region, shape)) return Effect.fail(refusedCut(paramName, recipe, region, shape))
  const parts = Result.all([
    sliceTensor(data, codeRegion(recipe, region)),
    sliceTensor(scale, scaleHull(recipe, region))
  ])
  return Result.isSuccess(parts)
    ? Effect.succeed({ ...tensor, data: parts.success[0], scale: parts.success[1] })
    : Effect.fail(unsupported(paramName, parts.failure.detail, "Make the plan again for these tensors."))
}

/** The region that is all of a tensor of this shape. */
export const wholeRegion = (shape: Shape): Region => shape.map((length): readonly [number, number] => [0, length])
