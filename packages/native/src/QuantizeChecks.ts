// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold of a conversion to or from quantized forms before any byte moves, whatever device it is on: a known
 * recipe, fitting shapes and types, whole blocks, and no overlap of what is written with anything else.
 */

import type { DType } from "@tensorferry/core/base/DType"
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount, equalShapes, formatShape, type Shape } from "@tensorferry/core/base/Region"
import type { KnownScales, TensorError } from "@tensorferry/core/service/TensorEngine"
import {
  type BlockSize,
  codeShapeOf,
  codeTypeOf,
  cutSizeOf,
  hasGlobal,
  layoutOf,
  type QuantizationRecipe,
  type QuantizedForm,
  type QuantizedTensor,
  quantizationRecipe,
  readsGlobal,
  recipeFault,
  recipeId,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Checked, describeTensor, type makeMoveChecks, type Refusal } from "./MoveChecks.ts"

/** Types that are quantized, and that codes are read into. */
export const quantizableTypes: ReadonlySet<DType> = new Set<DType>(["bfloat16", "float16", "float32"])

/** Why a conversion cannot be: the reason's tag, and a sentence. */
export interface QuantizedFault {
  readonly tag: "InvalidRequest" | "Unsupported"
  readonly detail: string
}

const invalid = (detail: string): QuantizedFault => ({ tag: "InvalidRequest", detail })
const unsupported = (detail: string): QuantizedFault => ({ tag: "Unsupported", detail })

const isOrigin = ([row, column]: readonly [number, number], { block }: Pick<QuantizationRecipe, "block">): boolean =>
  [row, column].every((at, dim) => Number.isSafeInteger(at) && at >= 0 && (block[dim] === 0 || at < block[dim]!))

/** Why what is known of scales does not fit. */
const knownFault = (
  { global, recipe }: QuantizedTensor,
  scales: Shape,
  { keepsGlobal = false, maxima, origin = [0, 0] }: KnownScales
): QuantizedFault | undefined => {
  if (!isOrigin(origin, recipe)) return invalid(`The origin ${origin} does not lie within a block.`)
  if (hasGlobal(recipe) && (origin[0] % cutSizeOf(recipe)[0] !== 0 || origin[1] !== 0)) {
    return invalid(`${recipe.rule} begins at a whole group, not at ${origin}.`)
  }
  if (hasGlobal(recipe) && (global?.dtype !== "float32" || elementCount(global.shape) !== 1)) {
    return invalid("The global scale is no float32 number.")
  }
  if (keepsGlobal && !readsGlobal(recipe)) {
    return unsupported(`The stored global scale of ${recipe.rule} does not say what groups are scaled by.`)
  }
  if (maxima === undefined) return undefined
  const wanted = hasGlobal(recipe) ? undefined : scales
  const fits = wanted === undefined ? elementCount(maxima.shape) === 1 : equalShapes(maxima.shape, wanted)
  return maxima.dtype === "float32" && fits
    ? undefined
    : invalid(`${describeTensor(maxima)} is not the largest magnitude of each block of ${formatShape(scales)}.`)
}

/** Why the plain and the quantized side of a conversion do not fit together. */
export const quantizedFault = (
  plain: Tensor,
  quantized: QuantizedTensor,
  known: KnownScales = {}
): QuantizedFault | undefined => {
  const { data, scale, recipe } = quantized
  const unknown = recipeFault(recipe)
  if (unknown !== undefined) return unsupported(`It cannot be done: ${unknown}.`)
  if (layoutOf(recipe) !== "rowMajor") {
    return unsupported(`Scales in the layout ${layoutOf(recipe)} are rearranged by a transform, not by an engine.`)
  }
  if (!quantizableTypes.has(plain.dtype)) return unsupported(`${plain.dtype} is not converted to ${recipe.name}.`)
  if (data.dtype !== codeTypeOf(recipe) || !scaleTypesOf(recipe, plain.dtype).includes(scale.dtype)) {
    return invalid(`${data.dtype} with scales of ${scale.dtype} is not ${recipeId(recipe)}.`)
  }
  const scales = scaleShapeOf(recipe, plain.shape, known.origin)
  if (scales === undefined) {
    return invalid(`${describeTensor(plain)} is no whole number of blocks of ${recipe.block.join("x")}.`)
  }
  if (!equalShapes(data.shape, codeShapeOf(recipe, plain.shape)) || !equalShapes(scale.shape, scales)) {
    return invalid(`${describeTensor(data)} with ${describeTensor(scale)} does not hold ${describeTensor(plain)}.`)
  }
  return knownFault(quantized, scales, known)
}

/** Why a search for largest magnitudes does not fit together. */
export const largestFault = (
  source: Tensor,
  maxima: Tensor,
  block: BlockSize,
  origin: readonly [number, number]
): QuantizedFault | undefined => {
  if (!quantizableTypes.has(source.dtype)) return unsupported(`${source.dtype} has no largest magnitudes here.`)
  if (maxima.dtype !== "float32") return invalid(`Largest magnitudes are float32, not ${maxima.dtype}.`)
  const recipe = quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", block)
  const unknown = recipeFault(recipe)
  if (unknown !== undefined) return invalid(`It cannot be done: ${unknown}.`)
  if (!isOrigin(origin, recipe)) return invalid(`The origin ${origin} does not lie within a block.`)
  const shape = scaleShapeOf(recipe, source.shape, origin)
  return elementCount(maxima.shape) === 1 || (shape !== undefined && equalShapes(maxima.shape, shape))
    ? undefined
    : invalid(`${describeTensor(maxima)} has no place for each block of ${describeTensor(source)}.`)
}

/** First byte and the one after the last that a view touches. */
const extentOf = ({ storage, byteOffset, shape, strides, dtype }: Tensor): readonly [bigint, bigint] => {
  const start = storage.address + BigInt(byteOffset)
  const last = shape.reduce((sum, length, dim) => sum + (length - 1) * strides[dim]!, 1)
  return [start, start + BigInt((last * bitsOf(dtype)) / 8)]
}

/** True where the spans of two tensors, from their first to their last byte, have a byte in common. */
export const meet = (a: Tensor, b: Tensor): boolean => {
  if (a.device.family !== b.device.family || a.device.index !== b.device.index) return false
  const [[start, end], [otherStart, otherEnd]] = [extentOf(a), extentOf(b)]
  return start < otherEnd && otherStart < end
}

/**
 * `checkTensor` is the engine's own check, `forms` what it converts. Regions are held apart by the span from their first to their last byte: codes and
 * scales that lie interleaved in one range of memory are refused too.
 */
export const makeQuantizeCheck = (
  refusal: Refusal,
  { checkTensor }: Pick<ReturnType<typeof makeMoveChecks>, "checkTensor">,
  forms: ReadonlyArray<QuantizedForm>
) => {
  const checked = (
    op: string,
    fault: QuantizedFault | undefined,
    written: ReadonlyArray<Tensor>,
    read: ReadonlyArray<Tensor>
  ): Checked<void> => {
    if (fault !== undefined) return Result.fail(refusal(fault.tag, op, fault.detail))
    for (const tensor of [...written, ...read]) {
      const wrong = checkTensor(op, tensor, written.includes(tensor))
      if (wrong !== undefined) return Result.fail(wrong)
    }
    const isEmpty = (tensor: Tensor) => tensor.shape.includes(0)
    for (const [at, dst] of written.entries()) {
      const other = [...written.slice(at + 1), ...read].find((one) => !isEmpty(one) && !isEmpty(dst) && meet(dst, one))
      if (other === undefined) continue
      const error: TensorError = refusal(
        "InvalidRequest",
        op,
        `${describeTensor(dst)}, which is written, overlaps ${describeTensor(other)}.`
      )
      return Result.fail(error)
    }
    return Result.succeed(undefined)
  }
  return {
    /** A conversion in either direction. */
    conversion: (
      op: "quantize" | "dequantize",
      plain: Tensor,
      quantized: QuantizedTensor,
      known: KnownScales = {}
    ): Checked<void> => {
      const { data, global, recipe, scale } = quantized
      const fault =
        quantizedFault(plain, quantized, known) ??
        (forms.includes(recipe.name) ? undefined : unsupported(`This engine does not convert to ${recipe.name}.`))
      const globals = global === undefined ? [] : [global]
      const maxima = known.maxima === undefined ? [] : [known.maxima]
      if (op === "dequantize") return checked(op, fault, [plain], [data, scale, ...globals])
      const keeps = known.keepsGlobal === true
      return checked(op, fault, [data, scale, ...(keeps ? [] : globals)], [plain, ...maxima, ...(keeps ? globals : [])])
    },
    /** A search for largest magnitudes. */
    largest: (
      source: Tensor,
      maxima: Tensor,
      block: BlockSize,
      origin: readonly [number, number] = [0, 0]
    ): Checked<void> => checked("largest", largestFault(source, maxima, block, origin), [maxima], [source])
  }
}
