// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold of a conversion to or from block-scaled types before any byte moves, whatever device it is on: a known
 * recipe, fitting shapes and types, whole blocks, and no overlap of what is written with anything else.
 */

import type { DType } from "@tensorferry/core/base/DType"
import { bitsOf } from "@tensorferry/core/base/DType"
import { equalShapes } from "@tensorferry/core/base/Region"
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import {
  layoutOf,
  mxBlockSize,
  type QuantizedTensor,
  recipeFault,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Checked, describeTensor, type makeMoveChecks, type Refusal } from "./MoveChecks.ts"

/** Types that block scaling converts from and to. */
export const quantizableTypes: ReadonlySet<DType> = new Set<DType>(["bfloat16", "float16", "float32"])

/** Why a conversion cannot be: the reason's tag, and a sentence. */
export interface QuantizedFault {
  readonly tag: "InvalidRequest" | "Unsupported"
  readonly detail: string
}

/** Why the plain and the quantized side of a conversion do not fit together. */
export const quantizedFault = (plain: Tensor, { data, scale, recipe }: QuantizedTensor): QuantizedFault | undefined => {
  const invalid = (detail: string): QuantizedFault => ({ tag: "InvalidRequest", detail })
  const unsupported = (detail: string): QuantizedFault => ({ tag: "Unsupported", detail })
  const unknown = recipeFault(recipe)
  if (unknown !== undefined) return unsupported(`It cannot be done: ${unknown}.`)
  if (layoutOf(recipe) !== "rowMajor") {
    return unsupported(`Scales in the layout ${layoutOf(recipe)} are rearranged by a transform, not by an engine.`)
  }
  if (!quantizableTypes.has(plain.dtype)) return unsupported(`${plain.dtype} is not converted to ${recipe.name}.`)
  if (data.dtype !== "float8_e4m3fn" || scale.dtype !== "float8_e8m0fnu") {
    return invalid(`${data.dtype} with scales of ${scale.dtype} is not ${recipe.name}.`)
  }
  const scales = scaleShapeOf(plain.shape)
  if (scales === undefined) {
    return invalid(`The last dimension of ${describeTensor(plain)} is not whole blocks of ${mxBlockSize}.`)
  }
  return equalShapes(data.shape, plain.shape) && equalShapes(scale.shape, scales)
    ? undefined
    : invalid(`${describeTensor(data)} with ${describeTensor(scale)} does not hold ${describeTensor(plain)}.`)
}

/** First byte and the one after the last that a view touches. */
const extentOf = ({ storage, byteOffset, shape, strides, dtype }: Tensor): readonly [bigint, bigint] => {
  const start = storage.address + BigInt(byteOffset)
  const last = shape.reduce((sum, length, dim) => sum + (length - 1) * strides[dim]!, 1)
  return [start, start + BigInt((last * bitsOf(dtype)) / 8)]
}

const meet = (a: Tensor, b: Tensor): boolean => {
  if (a.device.family !== b.device.family || a.device.index !== b.device.index) return false
  const [[start, end], [otherStart, otherEnd]] = [extentOf(a), extentOf(b)]
  return start < otherEnd && otherStart < end
}

/**
 * `checkMove` and `checkTensor` are the engine's own checks. Regions are held apart by the span from their first to their last
 * byte: data and scales that lie interleaved in one range of memory are refused too.
 */
export const makeQuantizeCheck =
  (
    refusal: Refusal,
    { checkMove, checkTensor }: Pick<ReturnType<typeof makeMoveChecks>, "checkMove" | "checkTensor">
  ) =>
  (op: "quantize" | "dequantize", plain: Tensor, quantized: QuantizedTensor): Checked<void> => {
    const fault = quantizedFault(plain, quantized)
    if (fault !== undefined) return Result.fail(refusal(fault.tag, op, fault.detail))
    const { data, scale } = quantized
    const [first, second] = op === "quantize" ? [data, plain] : [plain, data]
    const whole = checkMove(op, { dst: first, src: second })
    if (Result.isFailure(whole)) return Result.fail(whole.failure)
    const scaleFault = checkTensor(op, scale, op === "quantize")
    if (scaleFault !== undefined) return Result.fail(scaleFault)
    if (plain.shape.includes(0)) return Result.succeed(undefined)
    const written = op === "quantize" ? [data, scale] : [plain]
    for (const dst of written) {
      for (const other of [plain, data, scale]) {
        if (other === dst || !meet(dst, other)) continue
        const error: TensorError = refusal(
          "InvalidRequest",
          op,
          `${describeTensor(dst)}, which is written, overlaps ${describeTensor(other)}.`
        )
        return Result.fail(error)
      }
    }
    return Result.succeed(undefined)
  }
