// SPDX-License-Identifier: Apache-2.0
/**
 * The orders in which serving code reads scales, made from scales in rows.
 *
 * Invariant: every scale has one place, and what lies beside them is zero. A slice of a weight is no slice of these.
 */

/** Scales as words of four, column after column. */
export interface PackedPowers {
  /** Words in memory order, the lowest byte first; a column of words after the other. */
  readonly bytes: Uint8Array
  /** How many rows a column of words has: those of the scales, raised to a multiple of four. */
  readonly stride: number
}

/**
 * Exponent bytes [rows, columns] as DeepGEMM reads them on Blackwell: four of a row to an int32, the first in the lowest
 * byte, and words of a column one after the other.
 */
export const packPowers = (scales: Uint8Array, [rows, columns]: readonly [number, number]): PackedPowers => {
  const stride = 4 * Math.ceil(rows / 4)
  const bytes = new Uint8Array(4 * stride * Math.ceil(columns / 4))
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      bytes[4 * ((column >> 2) * stride + row) + (column & 3)] = scales[row * columns + column]!
    }
  }
  return { bytes, stride }
}

/** Where the scale of a row and group lies in tiles of 128x4, which block-scaled matrix units read. */
const tiled = (row: number, group: number, groups: number): number =>
  (Math.floor(row / 128) * Math.ceil(groups / 4) + (group >> 2)) * 512 +
  (row % 32) * 16 +
  Math.floor((row % 128) / 32) * 4 +
  (group & 3)

/** Scales [rows, groups] of one byte in tiles of 128x4, padded with zeros. */
export const tileScales = (scales: Uint8Array, [rows, groups]: readonly [number, number]): Uint8Array => {
  const tiles = new Uint8Array(512 * Math.ceil(rows / 128) * Math.ceil(groups / 4))
  scales.forEach((scale, at) => {
    tiles[tiled(Math.floor(at / groups), at % groups, groups)] = scale
  })
  return tiles
}

/** The scales [rows, groups] that lie in tiles. */
export const untileScales = (tiles: Uint8Array, [rows, groups]: readonly [number, number]): Uint8Array =>
  Uint8Array.from({ length: rows * groups }, (_, at) => tiles[tiled(Math.floor(at / groups), at % groups, groups)]!)
