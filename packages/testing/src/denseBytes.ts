// SPDX-License-Identifier: Apache-2.0
/** The elements of host tensors as bytes in logical order: read, written, and written here and there. Whole-byte types. */
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { isContiguous, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { walk } from "./tensorWalk.ts"

/** The bytes of a storage that the host sees. */
export const bytesOf = (tensor: Tensor): Uint8Array => tensor.storage.bytes!

/** The elements of a tensor, dense in logical order. */
export const denseOf = (tensor: Tensor): Uint8Array => {
  const size = bitsOf(tensor.dtype) / 8
  const bytes = bytesOf(tensor)
  if (isContiguous(tensor)) return bytes.slice(tensor.byteOffset, tensor.byteOffset + tensorByteLength(tensor))
  const dense = new Uint8Array(elementCount(tensor.shape) * size)
  let at = 0
  walk(tensor.shape, [tensor.strides], ([from]) => {
    const start = tensor.byteOffset + from! * size
    dense.set(bytes.subarray(start, start + size), at)
    at += size
  })
  return dense
}

/** Replaces all elements. */
export const storeDense = (tensor: Tensor, dense: Uint8Array): void => {
  const size = bitsOf(tensor.dtype) / 8
  const bytes = bytesOf(tensor)
  if (isContiguous(tensor)) {
    bytes.set(dense, tensor.byteOffset)
    return
  }
  let at = 0
  walk(tensor.shape, [tensor.strides], ([to]) => {
    bytes.set(dense.subarray(at, at + size), tensor.byteOffset + to! * size)
    at += size
  })
}

/** Replaces the elements at ascending positions of the logical order, and touches no other byte. */
export const storeAt = (tensor: Tensor, positions: Uint32Array, values: Uint8Array): void => {
  const size = bitsOf(tensor.dtype) / 8
  const bytes = bytesOf(tensor)
  let next = 0
  let at = 0
  walk(tensor.shape, [tensor.strides], ([to]) => {
    if (at === positions[next]) {
      bytes.set(values.subarray(next * size, (next + 1) * size), tensor.byteOffset + to! * size)
      next += 1
    }
    at += 1
  })
}
