// SPDX-License-Identifier: Apache-2.0
/** Seeded lists of batches. */
import type { ScheduledBatch } from "../../src/planning/CommunicationScheduler.ts"

export const makeRandom = (seed: number) => {
  let state = (seed * 2_654_435_761 + 1) >>> 0
  const below = (bound: number): number => {
    state ^= state << 13
    state >>>= 0
    state ^= state >>> 17
    state ^= state << 5
    state >>>= 0
    return state % bound
  }
  return { below }
}

/** Batches between different PEs; `skew` sends most of them from or to PE 0. */
export const randomBatches = (
  seed: number,
  peCount: number,
  count: number,
  skew = false
): ReadonlyArray<ScheduledBatch> => {
  const { below } = makeRandom(seed)
  const indices = new Map<string, number>()
  return Array.from({ length: peCount < 2 ? 0 : count }, () => {
    let source = skew && below(3) > 0 ? 0 : below(peCount)
    let destination = below(peCount)
    if (source === destination) destination = (destination + 1) % peCount
    if (skew && below(2) > 0) [source, destination] = [destination, source]
    const key = `${source} ${destination}`
    const index = indices.get(key) ?? 0
    indices.set(key, index + 1)
    return { source, destination, index, byteLength: 1 + below(1000) }
  })
}

export const shuffled = <A>(seed: number, list: ReadonlyArray<A>): ReadonlyArray<A> => {
  const { below } = makeRandom(seed)
  const copy = [...list]
  for (let at = copy.length - 1; at > 0; at--) {
    const other = below(at + 1)
    ;[copy[at], copy[other]] = [copy[other]!, copy[at]!]
  }
  return copy
}
