// SPDX-License-Identifier: Apache-2.0
/**
 * Rows of the `replay` commands: each states its number, and all its other bytes follow from that. So a reader can tell
 * which row it has, and that the row is whole.
 */

import type { ReplayRingError } from "@tensorferry/core/replay/ReplayRingError"
import { makeRowLayout, type RowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import type * as Result from "effect/Result"

/** A transition as learners store them. */
export const patternLayout = (width: number): Result.Result<RowLayout, ReplayRingError> =>
  makeRowLayout([
    { name: "row", dtype: "int64", shape: [] },
    { name: "reward", dtype: "float32", shape: [] },
    { name: "observation", dtype: "float32", shape: [width] }
  ])

/** Words of 32 bits behind the row's number: any bits will do, different for each row and place. */
const wordOf = (row: number, at: number): number => (Math.imul(row + 1, 0x9e3779b1) + Math.imul(at, 0x85ebca6b)) >>> 0

/** Fills packed rows, numbered from `first`. The memory starts at a multiple of 8 bytes. */
export const fillPattern = (rows: Uint8Array, rowBytes: number, first: bigint): void => {
  const numbers = new BigInt64Array(rows.buffer, rows.byteOffset, rows.byteLength / 8)
  const words = new Uint32Array(rows.buffer, rows.byteOffset, rows.byteLength / 4)
  const perRow = rowBytes / 4
  for (let at = 0, row = first; at < words.length; at += perRow, row += 1n) {
    numbers[at / 2] = row
    const low = Number(BigInt.asUintN(32, row))
    for (let word = 2; word < perRow; word++) words[at + word] = wordOf(low, word)
  }
}

/** The first row of a batch that is not the one expected, or is not whole; `undefined` where all are right. */
export const findFault = (
  rows: Uint8Array,
  rowBytes: number,
  expected: (at: number) => bigint
): { readonly at: number; readonly detail: string } | undefined => {
  const aligned = rows.byteOffset % 8 === 0 ? rows : rows.slice()
  const numbers = new BigInt64Array(aligned.buffer, aligned.byteOffset, aligned.byteLength / 8)
  const words = new Uint32Array(aligned.buffer, aligned.byteOffset, aligned.byteLength / 4)
  const perRow = rowBytes / 4
  for (let at = 0; at * perRow < words.length; at++) {
    const row = numbers[(at * perRow) / 2]!
    if (row !== expected(at)) return { at, detail: `is row ${row} of the ring, not ${expected(at)}` }
    const low = Number(BigInt.asUintN(32, row))
    for (let word = 2; word < perRow; word++) {
      if (words[at * perRow + word] !== wordOf(low, word)) return { at, detail: `is torn at byte ${word * 4}` }
    }
  }
  return undefined
}
