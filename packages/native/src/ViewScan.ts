// SPDX-License-Identifier: Apache-2.0
/**
 * The facts about a view that checks need, found in one pass over its dimensions.
 *
 * Invariant: nothing is allocated, one scan serves all tensors of a batch in turn; for a small copy, making an object
 * would cost as much as the copy. `isSound` promises that every element lies inside the storage.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { dimensionLimit } from "@tensorferry/core/base/Region"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"

/**
 * What is asked of a view before native code gets it: elements, span in bytes, and whether it is dense. Used again and again.
 */
export class ViewScan {
  /** Number of elements; 0 for an empty view, whose other facts mean nothing. */
  elements = 0
  /** The elements lie densely in row-major order. */
  isDense = false
  /** Every dimension steps over all behind it, so that no two indices name the same element. */
  isNested = false
  /** False also where deciding needs more care than a fast pass takes. */
  isSound = false
  /** Bytes from the first to behind the last element. */
  byteSpan = 0

  read(tensor: Tensor): void {
    const { shape, strides, byteOffset } = tensor
    const bits = bitsOf(tensor.dtype)
    let elements = 1
    let last = 1
    let isDense = true
    let isNested = true
    let isSound = strides.length === shape.length && shape.length <= dimensionLimit
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      const length = shape[dim]!
      const stride = strides[dim]!
      isSound &&= length >= 0 && stride >= 0
      if (length !== 1) {
        isDense &&= stride === elements
        isNested &&= stride >= last
      }
      elements *= length
      last += (length - 1) * stride
    }
    const byteSpan = Math.ceil((last * bits) / 8)
    this.elements = elements
    this.isDense = isDense
    this.isNested = isNested
    this.byteSpan = byteSpan
    this.isSound =
      isSound &&
      Number.isSafeInteger(elements * bits) &&
      Number.isSafeInteger(last * bits) &&
      Number.isSafeInteger(byteOffset) &&
      byteOffset >= 0 &&
      byteOffset + byteSpan <= tensor.storage.byteLength
  }
}
