// SPDX-License-Identifier: Apache-2.0
/**
 * Row-major scales to the tiles that matrix units read, and back, as moves that any engine does.
 *
 * The layout is the public "1D Block Scaling Factors Layout" of block-scaled matrix multiplication (docs/transforms.md names
 * the source): scales of `rows x columns` are padded with zeros to multiples of 128 rows and 4 columns; each
 * tile of 128 x 4 takes 512 bytes, tiles lie row after row, and within one the scale of (row, column) is at byte
 * `(row % 32) * 16 + floor(row / 32) * 4 + column`. Leading dimensions of a tensor count as rows.
 *
 * It is not affine in the row: rows 32 apart are neighbours. A part of these bytes is no part of the tensor, which is why
 * they are never sliced.
 */
import { elementCount, type Shape } from "../base/Region.ts"
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
  const pairs: Array<{ readonly rowMajor: Tensor; readonly swizzled: Tensor }> = []
  const add = (row: number, tiles: number, groups: number, groupLength: number, column: Stretch): void => {
    const shape = [tiles, groups, groupLength, column.outer, column.inner]
    pairs.push({
      rowMajor: {
        ...rowMajor,
        shape,
        strides: [tileRows * columns, groupRows * columns, columns, tileColumns, 1],
        byteOffset: rowMajor.byteOffset + row * columns + column.at
      },
      swizzled: {
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

/** Moves from dense row-major scales into swizzled ones; they do not write the padding. */
export const swizzleMoves = (rowMajor: Tensor, swizzled: Tensor): ReadonlyArray<Move> =>
  movesBetween(rowMajor, swizzled).map((pair) => ({ dst: pair.swizzled, src: pair.rowMajor }))

/** Moves from swizzled scales into dense row-major ones. */
export const unswizzleMoves = (swizzled: Tensor, rowMajor: Tensor): ReadonlyArray<Move> =>
  movesBetween(rowMajor, swizzled).map((pair) => ({ dst: pair.rowMajor, src: pair.swizzled }))
