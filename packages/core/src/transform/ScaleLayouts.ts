// SPDX-License-Identifier: Apache-2.0
/**
 * Row-major scales to the orders that kernels read, and back, as moves that any engine does. A part of these is no part of
 * the tensor, which is why they are never sliced.
 *
 * `swizzled`: the public "1D Block Scaling Factors Layout" of block-scaled matrix multiplication (docs/transforms.md names
 * the source): scales of `rows x columns` are padded with zeros to multiples of 128 rows and 4 columns; each
 * tile of 128 x 4 takes 512 bytes, tiles lie row after row, and within one the scale of (row, column) is at byte
 * `(row % 32) * 16 + floor(row / 32) * 4 + column`. Leading dimensions of a tensor count as rows.
 *
 * It is not affine in the row: rows 32 apart are neighbours.
 *
 * `packed`: four exponent bytes of a row to an int32, the first in the lowest byte, and words of a column one after the
 * other; a column has its rows raised to a multiple of four. DeepGEMM reads scales so on Blackwell (README of
 * deepseek-ai/DeepGEMM: packed UE8M0, column-major, aligned to 16 bytes). Padding is zero too.
 *
 * `transposed`: the last two dimensions exchanged, as block-scaled kernels of Hopper read float32 scales.
 */
import { elementCount, type Shape } from "../base/Region.ts"
import type { ScaleLayout } from "../tensor/QuantizedTensor.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"

const tileRows = 128
const tileColumns = 4
/** Rows of a tile that follow one another at a distance of `rowStep`. */
const groupRows = 32
const rowStep = 16
const groupStep = 4
const tileBytes = tileRows * tileColumns

const tilesOf = (length: number, tile: number): number => Math.ceil(length / tile)

/** Row-major scales as a matrix: leading dimensions are rows. */
export const scaleMatrixOf = (scaleShape: Shape): readonly [rows: number, columns: number] => [
  elementCount(scaleShape.slice(0, -1)),
  scaleShape.at(-1) ?? 1
]

/** Bytes of swizzled scales, padding included. */
export const swizzledLength = (rows: number, columns: number): number =>
  tilesOf(rows, tileRows) * tilesOf(columns, tileColumns) * tileBytes

/** Where the scale of a row and column lies. */
export const swizzledOffset = (row: number, column: number, columns: number): number => {
  const tile = Math.floor(row / tileRows) * tilesOf(columns, tileColumns) + Math.floor(column / tileColumns)
  const [inRow, inColumn] = [row % tileRows, column % tileColumns]
  return tile * tileBytes + (inRow % groupRows) * rowStep + Math.floor(inRow / groupRows) * groupStep + inColumn
}

interface Stretch {
  readonly at: number
  readonly outer: number
  readonly inner: number
}

/** A length as whole pieces, and what is left at the end as one shorter piece. */
const stretches = (length: number, piece: number): ReadonlyArray<Stretch> => {
  const whole = Math.floor(length / piece)
  const rest = length % piece
  return [
    ...(whole > 0 ? [{ at: 0, outer: whole, inner: piece }] : []),
    ...(rest > 0 ? [{ at: whole * piece, outer: 1, inner: rest }] : [])
  ]
}

/**
 * Moves between dense row-major scales and swizzled ones; padding is not touched. Rows and columns fall into whole tiles
 * and an edge each, and the edge rows into whole groups and a last one.
 */
const movesBetween = (rowMajor: Tensor, swizzled: Tensor) => {
  const [rows, columns] = scaleMatrixOf(rowMajor.shape)
  const columnTiles = tilesOf(columns, tileColumns)
  const pairs: Array<{ readonly rowMajor: Tensor; readonly laid: Tensor }> = []
  const add = (row: number, tiles: number, groups: number, groupLength: number, column: Stretch): void => {
    const shape = [tiles, groups, groupLength, column.outer, column.inner]
    pairs.push({
      rowMajor: {
        ...rowMajor,
        shape,
        strides: [tileRows * columns, groupRows * columns, columns, tileColumns, 1],
        byteOffset: rowMajor.byteOffset + row * columns + column.at
      },
      laid: {
        ...swizzled,
        shape,
        strides: [columnTiles * tileBytes, groupStep, rowStep, tileBytes, 1],
        byteOffset: swizzled.byteOffset + swizzledOffset(row, column.at, columns)
      }
    })
  }
  for (const column of stretches(columns, tileColumns)) {
    const wholeTiles = Math.floor(rows / tileRows)
    if (wholeTiles > 0) add(0, wholeTiles, tileRows / groupRows, groupRows, column)
    const edge = wholeTiles * tileRows
    for (const { at, outer, inner } of stretches(rows - edge, groupRows)) add(edge + at, 1, outer, inner, column)
  }
  return pairs
}

const packedStride = (rows: number): number => 4 * Math.ceil(rows / 4)

/** A view of each for whole words and for the last word of a row, which may have fewer bytes. */
const packedPairs = (rowMajor: Tensor, packed: Tensor) => {
  const [rows, columns] = scaleMatrixOf(rowMajor.shape)
  const word = 4 * packedStride(rows)
  return stretches(columns, 4).map(({ at, inner, outer }) => ({
    rowMajor: {
      ...rowMajor,
      shape: [rows, outer, inner],
      strides: [columns, 4, 1],
      byteOffset: rowMajor.byteOffset + at
    },
    laid: {
      ...packed,
      shape: [rows, outer, inner],
      strides: [4, word, 1],
      byteOffset: packed.byteOffset + (at / 4) * word
    }
  }))
}

/** The same memory with the last two dimensions exchanged. */
const exchanged = (tensor: Tensor): Tensor => {
  const swap = (values: ReadonlyArray<number>) =>
    values.length < 2 ? values : [...values.slice(0, -2), values.at(-1)!, values.at(-2)!]
  return { ...tensor, shape: swap(tensor.shape), strides: swap(tensor.strides) }
}

const pairsOf = (layout: ScaleLayout, rowMajor: Tensor, laid: Tensor) => {
  switch (layout) {
    case "rowMajor":
      return [{ rowMajor, laid }]
    case "swizzled":
      return movesBetween(rowMajor, laid)
    case "packed":
      return packedPairs(rowMajor, laid)
    case "transposed":
      return [{ rowMajor, laid: exchanged(laid) }]
  }
}

/** The shape in memory of scales whose row-major shape is given. */
export const laidOutShape = (layout: ScaleLayout, scales: Shape): Shape => {
  const [rows, columns] = scaleMatrixOf(scales)
  switch (layout) {
    case "rowMajor":
      return scales
    case "swizzled":
      return [swizzledLength(rows, columns)]
    case "packed":
      return [4 * packedStride(rows) * Math.ceil(columns / 4)]
    case "transposed":
      return scales.length < 2 ? scales : [...scales.slice(0, -2), columns, scales.at(-2)!]
  }
}

/** Moves from dense row-major scales into a layout; they do not write its padding. */
export const layOutMoves = (layout: ScaleLayout, rowMajor: Tensor, laid: Tensor): ReadonlyArray<Move> =>
  pairsOf(layout, rowMajor, laid).map((pair) => ({ dst: pair.laid, src: pair.rowMajor }))

/** Moves from scales in a layout into dense row-major ones. */
export const inRowsMoves = (layout: ScaleLayout, laid: Tensor, rowMajor: Tensor): ReadonlyArray<Move> =>
  pairsOf(layout, rowMajor, laid).map((pair) => ({ dst: pair.rowMajor, src: pair.laid }))
