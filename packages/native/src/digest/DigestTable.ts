// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which parts to digest cross into an addon: 64-bit words, one table per call. Only checked parts are
 * encoded.
 *
 * Words: number of parts; number of entries. Then for each entry: number of its part; address; bytes from the beginning of the
 * whole; bytes of an element; bits of each byte that count; dimensions; the shape; bytes between neighbours of each dimension
 * in memory, and in the whole.
 */
import type { ElementDigest } from "@tensorferry/core/tensor/ElementDigest"
import { addressOf, TableWriter } from "../MoveTable.ts"
import type { DigestBytes } from "./DigestParts.ts"

/** Words before the dimensions of an entry. */
const entryWords = 6

/** The table of one call. */
export const encodeDigest = (parts: number, entries: ReadonlyArray<DigestBytes>): BigUint64Array => {
  const words = entries.reduce((sum, { shape }) => sum + entryWords + 3 * shape.length, 2)
  const writer = new TableWriter(words)
  writer.putAll([parts, entries.length])
  for (const { mask, offset, part, position, positionSteps, shape, size, steps, tensor } of entries) {
    writer.putAll([part, addressOf(tensor) + offset, position, size, mask, shape.length])
    writer.putAll(shape)
    writer.putAll(steps)
    writer.putAll(positionSteps)
  }
  return writer.table
}

/** Digests out of halves as addons give them: two words for each part, the low half first. */
export const digestsOfHalves = (halves: BigUint64Array): ReadonlyArray<ElementDigest> =>
  Array.from({ length: halves.length / 2 }, (_, at) => (halves[2 * at + 1]! << 64n) | halves[2 * at]!)
