// SPDX-License-Identifier: Apache-2.0
/**
 * Which codes and scales of a quantized tensor belong to a strided view of its values. Pure.
 *
 * A view has them where it holds whole blocks, and where its last two dimensions are columns and rows of the tensor as the
 * recipe's blocks are: then the part is a quantized tensor of the same recipe by itself.
 */
import { equalShapes, type Shape } from "@tensorferry/core/base/Region"
import {
  codesPerByte,
  cutSizeOf,
  type QuantizationRecipe,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"

/** Elements of a dense tensor: those from `offset` on by these strides. */
export interface ElementView {
  readonly offset: number
  readonly shape: Shape
  readonly strides: ReadonlyArray<number>
}

/** The bytes or numbers of codes, and the scales, that a view of values stands on. */
export interface QuantizedView {
  readonly codes: ElementView
  readonly scales: ElementView
}

/** Length and stride of the blocks along one dimension of a view; undefined where it cuts one. */
interface Blocks {
  readonly length: number
  readonly stride: number
}

/** A dense tensor as rows and columns of elements and of blocks. */
interface Grid {
  readonly rows: number
  readonly columns: number
  /** Elements of a block, as far as the tensor reaches. */
  readonly high: number
  readonly wide: number
  /** Blocks along a row, and in a matrix. */
  readonly across: number
  readonly each: number
}

const gridOf = (recipe: QuantizationRecipe, shape: Shape): Grid => {
  const [rows, columns] = [shape.length < 2 ? 1 : shape.at(-2)!, shape.at(-1)!]
  const [high, wide] = [recipe.block[0] || rows, recipe.block[1] || columns]
  const across = Math.ceil(columns / wide)
  return { rows, columns, high, wide, across, each: Math.ceil(rows / high) * across }
}

/** Blocks along a dimension of a view that begins at `[row, column]`: it runs through rows or columns, or steps over some. */
const blocksAlong = (
  { rows, columns, high, wide, across, each }: Grid,
  length: number,
  stride: number,
  [row, column]: readonly [number, number]
): Blocks | undefined => {
  const run = (first: number, size: number, end: number, step: number): Blocks | undefined =>
    length % size === 0 || first + length === end ? { length: Math.ceil(length / size), stride: step } : undefined
  const stepped = (steps: number, size: number, step: number): Blocks | undefined =>
    steps % size === 0 ? { length, stride: (steps / size) * step } : undefined
  if (length === 1) return { length, stride: 1 }
  if (stride === 1) return run(column, wide, columns, 1)
  if (stride < columns) return stepped(stride, wide, 1)
  if (stride % columns !== 0) return undefined
  if (stride % (rows * columns) === 0 && rows > 1) return { length, stride: (stride / (rows * columns)) * each }
  const down = stride / columns
  return down === 1 ? run(row, high, rows, across) : stepped(down, high, across)
}

/** Whether steps along rows and columns end within their matrix: only then each dimension counts blocks by itself. */
const staysWithin = (
  { rows, columns }: Grid,
  { shape, strides }: ElementView,
  row: number,
  column: number
): boolean => {
  let [lastRow, lastColumn] = [row, column]
  for (const [dim, stride] of strides.entries()) {
    const steps = shape[dim]! - 1
    if (steps === 0) continue
    if (stride < columns) lastColumn += steps * stride
    else if (rows === 1 || stride % (rows * columns) !== 0) lastRow += (steps * stride) / columns
  }
  return lastColumn < columns && (lastRow < rows || rows === 1)
}

/** The view of codes and scales; undefined where the view of values cuts a block, or turns it. */
export const quantizedView = (
  recipe: QuantizationRecipe,
  shape: Shape,
  view: ElementView
): QuantizedView | undefined => {
  const { offset, shape: lengths, strides } = view
  const grid = gridOf(recipe, shape)
  const { rows, columns, high, wide, across, each } = grid
  const [matrix, within] = [Math.floor(offset / (rows * columns)), offset % (rows * columns)]
  const [row, column] = [Math.floor(within / columns), within % columns]
  const last = lengths.length - 1
  const [tall, broad] = cutSizeOf(recipe)
  const begins = row % (tall || rows) === 0 && column % (broad || columns) === 0
  if (last < 0 || !begins || !staysWithin(grid, view, row, column) || (strides[last] !== 1 && lengths[last] !== 1))
    return undefined
  const blocks = lengths.map((length, dim) => blocksAlong(grid, length, strides[dim]!, [row, column]))
  if (blocks.some((found) => found === undefined)) return undefined
  const known = blocks as ReadonlyArray<Blocks>
  const scaleShape = known.map(({ length }) => length)
  const own = scaleShapeOf(recipe, lengths)
  if (own === undefined || !equalShapes(own, scaleShape)) return undefined
  const perByte = codesPerByte(recipe)
  const isEven = [offset, lengths[last]!, ...strides.slice(0, last)].every((number) => number % perByte === 0)
  if (!isEven) return undefined
  return {
    codes: {
      offset: offset / perByte,
      shape: lengths.map((length, dim) => (dim === last ? length / perByte : length)),
      strides: strides.map((stride, dim) => (dim === last ? 1 : stride / perByte))
    },
    scales: {
      offset: matrix * each + Math.floor(row / high) * across + Math.floor(column / wide),
      shape: scaleShape,
      strides: known.map(({ stride }) => stride)
    }
  }
}
