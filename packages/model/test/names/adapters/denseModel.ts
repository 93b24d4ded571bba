// SPDX-License-Identifier: Apache-2.0
/** Values of what strips say, element by element, and products of small whole numbers, which are exact. */
import { elementCount, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import type { Assembly, Strip } from "../../../src/names/Strips.ts"

/** Values by the names of tensors. */
export type Values = ReadonlyMap<string, Float64Array>

/** Writes a strip's elements of the sources into a tensor of a shape. */
export const writeStrip = (strip: Strip, shape: Shape, sources: Values, into: Float64Array, scale = 1): void => {
  const strides = rowMajorStrides(shape)
  const write = (depth: number, at: number, from: number): void => {
    const loop = strip.loops[depth]
    if (loop === undefined) {
      into[at]! += strip.source === undefined ? 0 : scale * sources.get(strip.source)![from]!
      return
    }
    for (let step = 0; step < loop.count; step++)
      write(depth + 1, at + step * loop.step * strides[loop.dim]!, from + step * loop.source)
  }
  write(
    0,
    strip.at.reduce((sum, place, dim) => sum + place * strides[dim]!, 0),
    strip.offset
  )
}

/** The values of an assembly. */
export const valuesOf = ({ shape, strips }: Assembly, sources: Values): Float64Array => {
  const values = new Float64Array(elementCount(shape))
  for (const strip of strips) writeStrip(strip, shape, sources, values)
  return values
}

/** `scale * left @ right`, added. */
export const addProduct = (
  left: Float64Array,
  right: Float64Array,
  rank: number,
  scale: number,
  into: Float64Array,
  start = 0
): void => {
  const [rows, columns] = [left.length / rank, right.length / rank]
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      let sum = 0
      for (let one = 0; one < rank; one++) sum += left[row * rank + one]! * right[one * columns + column]!
      into[start + row * columns + column]! += scale * sum
    }
}
