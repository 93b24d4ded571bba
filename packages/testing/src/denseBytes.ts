// SPDX-License-Identifier: Apache-2.0
/** The elements of host tensors as bytes in logical order: read, written, and written here and there. Whole-byte types. */
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { isContiguous, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { walk } from "./tensorWalk.ts"
import { elementCodec } from "./values/casts.ts"

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

/** Numbers of a tensor, exact in float32. */
export const floatsOf = (tensor: Tensor): Float32Array => {
  const size = bitsOf(tensor.dtype) / 8
  const dense = denseOf(tensor)
  const view = new DataView(dense.buffer)
  const codec = elementCodec(tensor.dtype)!
  return Float32Array.from({ length: dense.length / size }, (_, at) => Number(codec.read(view, at * size)))
}

/** Writes numbers of float32 as elements of a tensor, in row-major order. */
export const storeFloats = (tensor: Tensor, values: Float32Array): void => {
  const size = bitsOf(tensor.dtype) / 8
  const dense = new Uint8Array(values.length * size)
  const view = new DataView(dense.buffer)
  const codec = elementCodec(tensor.dtype)!
  for (const [at, value] of values.entries()) codec.write(view, at * size, value)
  storeDense(tensor, dense)
}
