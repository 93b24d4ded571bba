// SPDX-License-Identifier: Apache-2.0
/**
 * Positions in 16 bits each, as they travel between hosts: the elements between a change and the one before it. Pure.
 *
 * Invariant: there is one way to write positions. Gaps that lead beyond 32 bits give positions that do not ascend, which
 * engines refuse.
 */

/** The gaps of ascending positions, or undefined where one takes more than 16 bits. */
export const gapsOf = (positions: Uint32Array): Uint16Array | undefined => {
  const gaps = new Uint16Array(positions.length)
  let next = 0
  for (let at = 0; at < positions.length; at++) {
    const position = positions[at]!
    const gap = position - next
    if (gap > 0xffff) return undefined
    gaps[at] = gap
    next = position + 1
  }
  return gaps
}

/** The positions of gaps. */
export const positionsOf = (gaps: Uint16Array): Uint32Array => {
  const positions = new Uint32Array(gaps.length)
  let next = 0
  for (let at = 0; at < gaps.length; at++) {
    const position = next + gaps[at]!
    positions[at] = position
    next = position + 1
  }
  return positions
}
