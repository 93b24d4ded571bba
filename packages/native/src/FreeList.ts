// SPDX-License-Identifier: Apache-2.0
/**
 * Which parts of a range are free: first fit, neighbours joined.
 *
 * Invariant: free parts are sorted, disjoint and never touch each other; offsets are multiples of the alignment.
 */

interface Gap {
  offset: number
  length: number
}

/** Free ranges of one stretch of memory; neighbours are joined. */
export interface FreeList {
  /** Offset of a free part of this length, which then is taken; `undefined` where none is long enough. */
  readonly take: (length: number) => number | undefined
  /** Gives back what `take` gave. */
  readonly give: (offset: number, length: number) => void
  /** True where nothing is lent. */
  readonly isEmpty: () => boolean
}

/** Every length is rounded up to a multiple of `alignment`, which also divides `byteLength`. */
export const makeFreeList = (byteLength: number, alignment: number): FreeList => {
  const gaps: Array<Gap> = [{ offset: 0, length: byteLength }]
  /** A part of length 0 takes space too, so that every part has its own offset. */
  const rounded = (length: number) => Math.max(1, Math.ceil(length / alignment)) * alignment
  return {
    take: (length) => {
      const needed = rounded(length)
      const index = gaps.findIndex((gap) => gap.length >= needed)
      if (index < 0) return undefined
      const gap = gaps[index]!
      const { offset } = gap
      gap.offset += needed
      gap.length -= needed
      if (gap.length === 0) gaps.splice(index, 1)
      return offset
    },
    give: (offset, length) => {
      const freed = { offset, length: rounded(length) }
      const next = gaps.findIndex((gap) => gap.offset > offset)
      const index = next < 0 ? gaps.length : next
      const before = gaps[index - 1]
      const after = gaps[index]
      const joinsBefore = before !== undefined && before.offset + before.length === offset
      const joinsAfter = after !== undefined && offset + freed.length === after.offset
      if (joinsBefore) {
        before.length += freed.length + (joinsAfter ? after.length : 0)
        if (joinsAfter) gaps.splice(index, 1)
      } else if (joinsAfter) {
        after.offset = offset
        after.length += freed.length
      } else {
        gaps.splice(index, 0, freed)
      }
    },
    isEmpty: () => gaps.length === 1 && gaps[0]!.length === byteLength
  }
}
