// SPDX-License-Identifier: Apache-2.0
/**
 * Lists of ranks as runs of equal steps: groups are nearly always such runs, and a job of thousands of ranks has
 * thousands of them.
 *
 * Invariant: expanding what was compressed gives the same list, and nothing is allocated before its length is checked.
 */
import * as Schema from "effect/Schema"
import { Rank } from "../base/Ids.ts"

const lastRank = 2 ** 31 - 1
const Step = Schema.Int.check(Schema.isBetween({ minimum: -lastRank, maximum: lastRank }))
const Count = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 }))

/** `count` ranks from `start`, each `step` after the one before. */
export const StepRun = Schema.Tuple([Rank, Step, Count])
export type StepRun = readonly [start: Rank, step: number, count: number]

/** Takes the longest run from the left, again and again: each but the last has at least two ranks. */
export const runsOf = (ranks: ReadonlyArray<Rank>): ReadonlyArray<StepRun> => {
  const runs: Array<StepRun> = []
  for (let at = 0; at < ranks.length; ) {
    const start = ranks[at]!
    const step = at + 1 < ranks.length ? ranks[at + 1]! - start : 0
    let count = 1
    while (at + count < ranks.length && ranks[at + count] === start + step * count) count += 1
    runs.push([start, step, count])
    at += count
  }
  return runs
}

/** Number of ranks in all runs together. */
export const runsLength = (runs: ReadonlyArray<StepRun>): number => runs.reduce((sum, [, , count]) => sum + count, 0)

/** The list; undefined where a run leaves the numbers that ranks have. The caller checks `runsLength` first. */
export const expandRuns = (runs: ReadonlyArray<StepRun>): ReadonlyArray<Rank> | undefined => {
  const ranks: Array<Rank> = []
  for (const [start, step, count] of runs) {
    const last = start + step * (count - 1)
    if (last < 0 || last > lastRank) return undefined
    for (let at = 0; at < count; at++) ranks.push(start + step * at)
  }
  return ranks
}
