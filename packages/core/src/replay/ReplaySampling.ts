// SPDX-License-Identifier: Apache-2.0
/**
 * Which rows a batch consists of: uniform draws with replacement from a range, fixed by seed and tick.
 *
 * Invariants: the same seed, tick, count and range give the same rows on every machine; each row of the range is equally
 * likely (draws beyond it are thrown away, not folded back); ticks are independent of each other.
 */

/** Largest range that can be drawn from. */
export const largestRange = 2 ** 32

/** A mixing step of 32 bits in which each output bit depends on each input bit. */
const mix = (value: number): number => {
  let mixed = value | 0
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x21f0aaad)
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97)
  return (mixed ^ (mixed >>> 15)) >>> 0
}

const low = (value: number): number => value >>> 0
const high = (value: number): number => Math.floor(value / 2 ** 32) >>> 0

/** The random numbers of one tick. */
export interface RowDraws {
  /** 32 bits. */
  readonly next32: () => number
  /** A whole number from 0 to below `range`, each as likely. */
  readonly next: (range: number) => number
}

/** The draws of one tick. Seed and tick are natural numbers up to 2^53. */
export const rowDraws = (seed: number, tick: number): RowDraws => {
  // Four words of state, each a function of all of seed and tick; never all zero.
  let chain = 0x9e3779b9
  for (const word of [low(seed), high(seed), low(tick), high(tick)]) chain = mix(chain ^ word) + 0x9e3779b9
  let [a, b, c, d] = [1, 2, 3, 4].map((at) => mix(chain + Math.imul(at, 0x9e3779b9)) | 0) as [
    number,
    number,
    number,
    number
  ]
  if ((a | b | c | d) === 0) d = 1
  const next32 = (): number => {
    const scrambled = Math.imul(b, 5)
    const result = Math.imul((scrambled << 7) | (scrambled >>> 25), 9) >>> 0
    const shifted = b << 9
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << 11) | (d >>> 21)
    return result
  }
  return {
    next32,
    next: (range) => {
      if (range <= 1) return 0
      const shift = Math.clz32(range - 1)
      for (;;) {
        const drawn = next32() >>> shift
        if (drawn < range) return drawn
      }
    }
  }
}

/** Offsets of a batch's rows from the oldest row of the range. */
export const drawRows = (request: {
  readonly seed: number
  readonly tick: number
  readonly rows: number
  readonly range: number
}): Uint32Array => {
  const draws = rowDraws(request.seed, request.tick)
  const offsets = new Uint32Array(request.rows)
  for (let row = 0; row < offsets.length; row++) offsets[row] = draws.next(request.range)
  return offsets
}
