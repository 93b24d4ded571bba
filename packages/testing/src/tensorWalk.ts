// SPDX-License-Identifier: Apache-2.0
/**
 * Walks the elements of tensors of one shape in row-major order, and finds overlaps between regions that way.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import { isContiguous, type Move, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"

/**
 * Calls `visit` with the element offsets of all tensors at each position. The array is reused between calls.
 */
export const walk = (
  shape: Shape,
  strides: ReadonlyArray<ReadonlyArray<number>>,
  visit: (offsets: ReadonlyArray<number>) => void
): void => {
  if (shape.includes(0)) return
  const offsets = strides.map(() => 0)
  const index = shape.map(() => 0)
  while (true) {
    visit(offsets)
    let dim = shape.length - 1
    while (dim >= 0) {
      index[dim]! += 1
      for (let operand = 0; operand < strides.length; operand++) offsets[operand]! += strides[operand]![dim]!
      if (index[dim]! < shape[dim]!) break
      for (let operand = 0; operand < strides.length; operand++) {
        offsets[operand]! -= strides[operand]![dim]! * shape[dim]!
      }
      index[dim] = 0
      dim -= 1
    }
    if (dim < 0) return
  }
}

/** Elements that lie densely at the end of both sides of a move, and the dimensions before them. */
export const denseTail = ({ dst, src }: Move): { readonly outer: number; readonly run: number } => {
  let outer = dst.shape.length
  let run = 1
  while (outer > 0) {
    const dim = outer - 1
    if (dst.shape[dim] !== 1 && (dst.strides[dim] !== run || src.strides[dim] !== run)) break
    run *= dst.shape[dim]!
    outer = dim
  }
  return { outer, run }
}

/** Calls `visit` with the first byte and the length of each run of a tensor of whole-byte elements. */
const walkBytes = (tensor: Tensor, visit: (start: number, length: number) => void): void => {
  const bytes = bitsOf(tensor.dtype) / 8
  const { outer, run } = denseTail({ dst: tensor, src: tensor })
  walk(tensor.shape.slice(0, outer), [tensor.strides.slice(0, outer)], ([offset]) =>
    visit(tensor.byteOffset + offset! * bytes, run * bytes)
  )
}

/** True where both are views of the same elements, one by one in the same bytes. */
export const isSameView = (a: Tensor, b: Tensor): boolean =>
  a.storage.generation === b.storage.generation &&
  a.byteOffset === b.byteOffset &&
  bitsOf(a.dtype) === bitsOf(b.dtype) &&
  a.shape.every((length, dim) => length === b.shape[dim] && (length <= 1 || a.strides[dim] === b.strides[dim]))

/** First byte and the one after the last. */
const extent = (tensor: Tensor): readonly [number, number] => {
  const last = tensor.shape.reduce((sum, length, dim) => sum + (length - 1) * tensor.strides[dim]!, 1)
  return [tensor.byteOffset, tensor.byteOffset + (last * bitsOf(tensor.dtype)) / 8]
}

/** True where the bytes between the first and the last of each tensor do not meet, so that the tensors cannot either. */
const areApart = (tensors: ReadonlyArray<Tensor>): boolean => {
  const extents = tensors.map(extent).sort((a, b) => a[0] - b[0])
  return extents.every(([start], at) => at === 0 || extents[at - 1]![1] <= start)
}

/**
 * The byte, counted from the start of its storage, that a batch writes twice, or writes and reads for different elements;
 * `undefined` where there is none. Moves are of whole-byte elements.
 */
export const findOverlap = (moves: ReadonlyArray<Move>): number | undefined => {
  const storages = new Map<number, { readonly written: Array<Tensor>; readonly read: Array<Tensor> }>()
  const of = (tensor: Tensor) => {
    const { generation } = tensor.storage
    const known = storages.get(generation) ?? { written: [], read: [] }
    storages.set(generation, known)
    return known
  }
  for (const { dst, src } of moves) {
    if (tensorByteLength(dst) === 0) continue
    of(dst).written.push(dst)
    if (!isSameView(dst, src)) of(src).read.push(src)
  }
  for (const { written, read } of storages.values()) {
    if (written.length === 0) continue
    if (areApart([...written, ...read]) && written.every(isContiguous)) continue
    const marks = new Uint8Array(Math.max(...written.map((tensor) => extent(tensor)[1])))
    let overlap: number | undefined
    for (const tensor of written) {
      walkBytes(tensor, (start, length) => {
        const marked = marks.subarray(start, start + length).indexOf(1)
        if (marked >= 0) overlap ??= start + marked
        marks.fill(1, start, start + length)
      })
    }
    for (const tensor of read) {
      walkBytes(tensor, (start, length) => {
        const marked = marks.subarray(start, start + length).indexOf(1)
        if (marked >= 0) overlap ??= start + marked
      })
    }
    if (overlap !== undefined) return overlap
  }
  return undefined
}
