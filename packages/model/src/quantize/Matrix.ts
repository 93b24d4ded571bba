// SPDX-License-Identifier: Apache-2.0
/**
 * What quantizers read: a matrix or a rectangle of one, and the largest magnitudes of the blocks that it touches.
 *
 * Invariant: maxima of parts join to the maxima of the whole, in any order, so that several senders can fill one block. A
 * NaN anywhere in a block makes its maximum NaN.
 */
import * as Data from "effect/Data"
import type { SourceType } from "./numbers.ts"

/** Row-major values, each exactly representable in `dtype`. The type matters: some references round in it. */
export interface Matrix {
  readonly values: Float32Array
  readonly rows: number
  readonly columns: number
  readonly dtype: SourceType
}

/** Rows and columns that share a scale. `Infinity` stands for all of them: a tensor, or a channel of one row. */
export interface Block {
  readonly rows: number
  readonly columns: number
}

/** Where a matrix lies in a larger one, and what is known of the blocks that it touches. */
export interface Place {
  /** Row and column of its first element in the whole; the first by default. */
  readonly origin?: readonly [row: number, column: number]
  /** Maxima of the blocks that it touches, row-major, where others hold elements of them; its own by default. */
  readonly maxima?: Float32Array
  /**
   * What becomes of what the reference has no code for: a fault by default, or code 0 under a scale that says NaN, as
   * engines do, which cannot stop half way.
   */
  readonly isTotal?: boolean
}

/** Why something was not quantized, or not recast, and where. */
export class QuantizeFault extends Data.TaggedError("QuantizeFault")<{
  readonly detail: string
  /** Row and column of the first element concerned, where one is. */
  readonly at?: readonly [row: number, column: number]
}> {
  override get message(): string {
    return this.at === undefined ? this.detail : `${this.detail} (row ${this.at[0]}, column ${this.at[1]})`
  }
}

/** One dimension of the blocks that a part touches: which is the first, and how many there are. */
interface Span {
  readonly first: number
  readonly count: number
}

const spanOf = (length: number, size: number, origin: number): Span => {
  if (length === 0) return { first: 0, count: 0 }
  if (size === Number.POSITIVE_INFINITY) return { first: 0, count: 1 }
  const first = Math.floor(origin / size)
  return { first, count: Math.ceil((origin + length) / size) - first }
}

/** Where elements of a block stop in a part: a row or column of it. */
const stopOf = ({ first }: Span, size: number, at: number, origin: number, length: number): number =>
  size === Number.POSITIVE_INFINITY ? length : Math.min(length, (first + at + 1) * size - origin)

/** A block as a part touches it: its number in row-major order, and rows and columns of the part. */
export interface Touched {
  readonly index: number
  readonly rows: readonly [start: number, stop: number]
  readonly columns: readonly [start: number, stop: number]
}

/** How many blocks a matrix touches in each dimension. */
export const blockCounts = (
  { columns, rows }: Pick<Matrix, "rows" | "columns">,
  block: Block,
  [row, column]: readonly [number, number] = [0, 0]
): readonly [rows: number, columns: number] => [
  spanOf(rows, block.rows, row).count,
  spanOf(columns, block.columns, column).count
]

/** Calls `visit` for each block that a matrix touches, row-major, until one gives a fault. */
export const eachBlock = (
  { columns, rows }: Pick<Matrix, "rows" | "columns">,
  block: Block,
  [row, column]: readonly [number, number],
  visit: (touched: Touched) => QuantizeFault | undefined
): QuantizeFault | undefined => {
  const down = spanOf(rows, block.rows, row)
  const across = spanOf(columns, block.columns, column)
  for (let i = 0, top = 0; i < down.count; i++) {
    const bottom = stopOf(down, block.rows, i, row, rows)
    for (let j = 0, left = 0; j < across.count; j++) {
      const right = stopOf(across, block.columns, j, column, columns)
      const fault = visit({ index: i * across.count + j, rows: [top, bottom], columns: [left, right] })
      if (fault !== undefined) return fault
      left = right
    }
    top = bottom
  }
  return undefined
}

/** The larger magnitude; NaN where either is. */
export const largerOf = (one: number, two: number): number =>
  Number.isNaN(one) || Number.isNaN(two) ? Number.NaN : Math.max(one, two)

/** The largest magnitude of a rectangle of a matrix. Zero for an empty one. */
const largestIn = ({ columns, values }: Matrix, { columns: [left, right], rows: [top, bottom] }: Touched): number => {
  let largest = 0
  for (let row = top; row < bottom; row++) {
    for (let at = row * columns + left; at < row * columns + right; at++) {
      const magnitude = Math.abs(values[at]!)
      if (magnitude > largest) largest = magnitude
      else if (Number.isNaN(magnitude)) return Number.NaN
    }
  }
  return largest
}

/** The largest magnitude of each block that a matrix touches, row-major. */
export const maximaOf = (matrix: Matrix, block: Block, origin: readonly [number, number] = [0, 0]): Float32Array => {
  const [down, across] = blockCounts(matrix, block, origin)
  const maxima = new Float32Array(down * across)
  eachBlock(matrix, block, origin, (touched) => {
    maxima[touched.index] = largestIn(matrix, touched)
    return undefined
  })
  return maxima
}

/** The largest magnitude of a matrix. */
export const maximumOf = (matrix: Matrix): number =>
  largestIn(matrix, { index: 0, rows: [0, matrix.rows], columns: [0, matrix.columns] })

/** Maxima of the same blocks as several senders see them, joined. */
export const joinMaxima = (one: Float32Array, two: Float32Array): Float32Array =>
  one.map((value, at) => largerOf(value, two[at]!))
