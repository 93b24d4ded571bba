// SPDX-License-Identifier: Apache-2.0
/**
 * Cuts a part that must be packed into boxes that fit a staging buffer.
 *
 * Invariants: a pure function of shape, width and limit, so both ends cut alike; boxes follow one another in row-major
 * order and each is one run of it, so a box of a dense part is dense; boxes of types narrower than a byte are whole bytes.
 */
import { fullRegion, type Interval, type Region, type Shape } from "@tensorferry/core/base/Region"

/** Boxes of at most `limitBytes` that cover the shape, in order. Narrow types may exceed it by one row of eight elements. */
export const cutShape = (shape: Shape, bits: number, limitBytes: number): ReadonlyArray<Region> => {
  if (shape.includes(0)) return []
  const limit = limitBytes * 8
  const boxes: Array<Region> = []
  /** Bits of one index of each dimension. */
  const rowBits = shape.map((_, dim) => shape.slice(dim + 1).reduce((product, length) => product * length, bits))
  const rest = (dim: number): Region => fullRegion(shape.slice(dim))

  const cut = (dim: number, before: ReadonlyArray<Interval>): void => {
    const length = shape[dim]
    if (length === undefined || length * rowBits[dim]! <= limit) {
      boxes.push([...before, ...rest(dim)])
      return
    }
    const isWhole = rowBits[dim]! % 8 === 0
    const fitting = Math.floor(limit / rowBits[dim]!)
    if (fitting === 0 && isWhole && dim + 1 < shape.length) {
      for (let index = 0; index < length; index++) cut(dim + 1, [...before, [index, index + 1]])
      return
    }
    const step = isWhole ? Math.max(1, fitting) : Math.max(8, Math.floor(fitting / 8) * 8)
    for (let start = 0; start < length; start += step) {
      boxes.push([...before, [start, Math.min(length, start + step)], ...rest(dim + 1)])
    }
  }

  cut(0, [])
  return boxes
}
