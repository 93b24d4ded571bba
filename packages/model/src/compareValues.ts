// SPDX-License-Identifier: Apache-2.0
/**
 * How far the values of two tensors lie apart. A difference is measured against the largest magnitude among its neighbours
 * in a row, as many as share a scale where blocks are quantized, so that one tolerance fits small and large values.
 */
import { mxBlockSize } from "@tensorferry/core/tensor/QuantizedTensor"

/** The largest difference between two lists of values. */
export interface Distance {
  /** The largest difference, as a part of the largest magnitude of its block. Infinity where one is NaN and the other not. */
  readonly relative: number
  /** Where it is, among the values given. */
  readonly at: number
}

/** `row` is the length of the last dimension; blocks do not go beyond a row. Equal infinities, and two NaN, are the same. */
export const distanceOf = (a: Float32Array, b: Float32Array, row: number): Distance => {
  let [relative, at] = [0, 0]
  for (let start = 0; start < a.length; ) {
    const left = row - (start % row)
    const end = Math.min(start + Math.min(mxBlockSize, left), a.length)
    let most = 0
    for (let i = start; i < end; i++) {
      for (const value of [Math.abs(a[i]!), Math.abs(b[i]!)]) if (value > most && Number.isFinite(value)) most = value
    }
    for (let i = start; i < end; i++) {
      if (a[i] === b[i] || (Number.isNaN(a[i]!) && Number.isNaN(b[i]!))) continue
      const difference = Math.abs(a[i]! - b[i]!)
      const part = Number.isFinite(difference) && most > 0 ? difference / most : Number.POSITIVE_INFINITY
      if (part > relative) [relative, at] = [part, i]
    }
    start = end
  }
  return { relative, at }
}
