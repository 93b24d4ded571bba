// SPDX-License-Identifier: Apache-2.0
/**
 * How much of a change a cast swallows: an element that changed, but has the same value as before once it is rounded to the
 * type in which it is kept. A merged adapter on a coarse grid is the usual case.
 */

import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, equalShapes, formatShape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { isContiguous, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { fromTensorError, type TransformError, transformError } from "@tensorferry/core/transform/ReshardTransform"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"

/** What a cast loses: elements that are rounded, overflow or vanish. */
export interface RoundingReport {
  readonly elements: number
  /** Elements whose new value differs from the old one. */
  readonly changed: number
  /** Those of them that rounding takes back to the old value. */
  readonly unchangedByRounding: number
}

/** Elements that are looked at together. */
const pieceElements = 1 << 20

/** A dense tensor's elements `from` to `to` in another type, on the host. */
const onHost = (tensor: Tensor, dtype: DType, from: number, to: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const bytes = new Uint8Array(((to - from) * bitsOf(dtype)) / 8)
    const host = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), dtype, [to - from]))
    const part: Tensor = {
      ...tensor,
      shape: [to - from],
      strides: [1],
      byteOffset: tensor.byteOffset + (from * bitsOf(tensor.dtype)) / 8
    }
    const cast = yield* engine.allocate(dtype, [to - from], tensor.device)
    yield* engine.copy([{ dst: cast, src: part }])
    yield* engine.copy([{ dst: host, src: cast }])
    return bytes
  })

/** A tensor whose elements lie in order. */
const inOrder = (tensor: Tensor): Effect.Effect<Tensor, TensorError, TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    if (isContiguous(tensor)) return tensor
    const engine = yield* TensorEngine
    const dense = yield* engine.allocate(tensor.dtype, tensor.shape, tensor.device)
    yield* engine.copy([{ dst: dense, src: tensor }])
    return dense
  })

/** Compares values before an update with those after, as numbers of 64 bits and as they are kept in `dtype`. */
export const roundingReport = (
  paramName: string,
  before: Tensor,
  after: Tensor,
  dtype: DType
): Effect.Effect<RoundingReport, TransformError, TensorEngine> =>
  Effect.gen(function* () {
    if (!equalShapes(before.shape, after.shape)) {
      return yield* transformError("UnsupportedTensor", {
        paramName,
        detail: `The shapes before and after differ: ${formatShape(before.shape)} and ${formatShape(after.shape)}.`,
        remedy: "Compare the same region of both."
      })
    }
    const elements = elementCount(before.shape)
    let [changed, unchangedByRounding] = [0, 0]
    const [old, now] = [yield* inOrder(before), yield* inOrder(after)]
    for (let from = 0; from < elements; from += pieceElements) {
      const to = Math.min(from + pieceElements, elements)
      const count = (was: Uint8Array, is: Uint8Array, wasKept: Uint8Array, isKept: Uint8Array): void => {
        const [a, b] = [new BigUint64Array(was.buffer), new BigUint64Array(is.buffer)]
        const size = bitsOf(dtype) / 8
        for (let at = 0; at < a.length; at++) {
          if (a[at] === b[at]) continue
          changed += 1
          let isSame = true
          for (let byte = at * size; byte < (at + 1) * size; byte++) isSame &&= wasKept[byte] === isKept[byte]
          if (isSame) unchangedByRounding += 1
        }
      }
      const piece = Effect.gen(function* () {
        const was = yield* onHost(old, "float64", from, to)
        const is = yield* onHost(now, "float64", from, to)
        count(was, is, yield* onHost(old, dtype, from, to), yield* onHost(now, dtype, from, to))
      })
      yield* Effect.scoped(piece)
    }
    return { elements, changed, unchangedByRounding }
  }).pipe(
    Effect.scoped,
    Effect.mapError((error) => (error._tag === "TensorError" ? fromTensorError(paramName, error) : error))
  )
