// SPDX-License-Identifier: Apache-2.0
/** Runs of bytes of regions as views. Pure. */
import { bitsOf } from "@tensorferry/core/base/DType"
import type { Region } from "@tensorferry/core/base/Region"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"

/** A region of a dense tensor as bytes: its last dimension is of single bytes, and dimensions that lie densely are one. */
export const byteView = (tensor: Tensor, region: Region): Tensor => {
  const width = bitsOf(tensor.dtype) / 8
  let byteOffset = tensor.byteOffset
  const [shape, strides]: [Array<number>, Array<number>] = [[], []]
  for (const [dim, [start, end]] of region.entries()) {
    const stride = tensor.strides[dim]! * width
    byteOffset += start * stride
    const length = end - start
    // Of an outer dimension that repeats just where this one ends, both are one.
    if (shape.length > 0 && strides.at(-1) === length * stride) {
      shape[shape.length - 1]! *= length
      strides[strides.length - 1] = stride
    } else if (length !== 1 || dim === region.length - 1) {
      shape.push(length)
      strides.push(stride)
    }
  }
  if (strides.at(-1) === width) {
    shape[shape.length - 1]! *= width
    strides[strides.length - 1] = 1
  } else {
    shape.push(width)
    strides.push(1)
  }
  return { ...tensor, dtype: "uint8", shape, strides, byteOffset }
}

/** Bytes `start` to `end` of a view of bytes, in row-major order, as views: at most two for each dimension. */
export const cutView = (view: Tensor, start: number, end: number): ReadonlyArray<Tensor> => {
  if (start >= end) return []
  const [length, ...inner] = view.shape
  const [stride, ...innerStrides] = view.strides
  if (inner.length === 0) {
    return [{ ...view, shape: [end - start], byteOffset: view.byteOffset + start * stride! }]
  }
  const rowBytes = inner.reduce((product, each) => product * each, 1)
  if (start === 0 && end === length! * rowBytes) return [view]
  const rowAt = (row: number): Tensor => ({
    ...view,
    shape: inner,
    strides: innerStrides,
    byteOffset: view.byteOffset + row * stride!
  })
  const [first, last] = [Math.floor(start / rowBytes), Math.floor((end - 1) / rowBytes)]
  if (first === last) return cutView(rowAt(first), start - first * rowBytes, end - first * rowBytes)
  const firstWhole = Math.ceil(start / rowBytes)
  const endWhole = Math.floor(end / rowBytes)
  const head = firstWhole > first ? cutView(rowAt(first), start - first * rowBytes, rowBytes) : []
  const tail = endWhole * rowBytes < end ? cutView(rowAt(endWhole), 0, end - endWhole * rowBytes) : []
  const whole: ReadonlyArray<Tensor> =
    endWhole > firstWhole
      ? [{ ...view, shape: [endWhole - firstWhole, ...inner], byteOffset: view.byteOffset + firstWhole * stride! }]
      : []
  return [...head, ...whole, ...tail]
}
