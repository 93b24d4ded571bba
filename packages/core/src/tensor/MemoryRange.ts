// SPDX-License-Identifier: Apache-2.0
/**
 * Where the elements of a view lie in the address space of their device. Pure.
 *
 * Invariant: compares addresses, not storages, so that one memory under two storages is seen as one.
 */
import { bitsOf } from "../base/DType.ts"
import { equalDevices } from "./Device.ts"
import type { Tensor } from "./Tensor.ts"

const firstByte = (tensor: Tensor): bigint => tensor.storage.address + BigInt(tensor.byteOffset)

/** First byte and the one after the last; the bytes between need not all belong to the view. */
export const memoryRange = (tensor: Tensor): readonly [start: bigint, end: bigint] => {
  const start = firstByte(tensor)
  if (tensor.shape.includes(0)) return [start, start]
  const last = tensor.shape.reduce((sum, length, dim) => sum + (length - 1) * tensor.strides[dim]!, 1)
  return [start, start + BigInt(Math.ceil((last * bitsOf(tensor.dtype)) / 8))]
}

/** True where both views are of the same elements, one by one in the same bytes. */
export const isSameView = (a: Tensor, b: Tensor): boolean =>
  a.dtype === b.dtype &&
  equalDevices(a.device, b.device) &&
  firstByte(a) === firstByte(b) &&
  a.shape.length === b.shape.length &&
  a.shape.every((length, dim) => length === b.shape[dim] && (length <= 1 || a.strides[dim] === b.strides[dim]))
