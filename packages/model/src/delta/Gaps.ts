// SPDX-License-Identifier: Apache-2.0
/**
 * Positions in 16 bits each, as they travel between hosts: the elements between a change and the one before it. Pure.
 *
 * Invariant: there is one way to write positions. Gaps that lead beyond 32 bits give positions that do not ascend, which
 * engines refuse.
 */

/** Writes the gaps of ascending positions; false where one takes more than 16 bits. */
export const writeGaps = (positions: Uint32Array, gaps: Uint16Array): boolean => {
  let next = 0
  for (let at = 0; at < positions.length; at++) {
    const position = positions[at]!
    const gap = position - next
    if (gap > 0xffff) return false
    gaps[at] = gap
    next = position + 1
  }
  return true
}

/** Writes the positions of gaps. */
export const writePositions = (gaps: Uint16Array, positions: Uint32Array): void => {
  let next = 0
  for (let at = 0; at < gaps.length; at++) {
    const position = next + gaps[at]!
    positions[at] = position
    next = position + 1
  }
}
