// SPDX-License-Identifier: Apache-2.0
/** Which expert-parallel rank holds which experts, in the order in which a stacked tensor has them. */
import { chunkInterval, type Interval } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ExpertChoice } from "./Placement.ts"

/** Experts of one layer beyond which a number in a name is no expert's. */
const mostExperts = 2 ** 20

type Runs = ReadonlyArray<ReadonlyArray<Interval>>

/** Numbers that follow each other become one run. */
const runsOf = (numbers: ReadonlyArray<number>): ReadonlyArray<Interval> => {
  const runs: Array<[number, number]> = []
  for (const number of numbers) {
    const last = runs.at(-1)
    if (last !== undefined && last[1] === number) last[1]++
    else runs.push([number, number + 1])
  }
  return runs
}

const linear = (count: number, ranks: number): Runs => {
  const [share, more] = [Math.floor(count / ranks), count % ranks]
  return Array.from({ length: ranks }, (_, rank): ReadonlyArray<Interval> => {
    const from = rank * share + Math.min(rank, more)
    const end = from + share + (rank < more ? 1 : 0)
    return from === end ? [] : [[from, end]]
  })
}

const stated = (
  map: ReadonlyArray<ReadonlyArray<number>>,
  count: number,
  ranks: number
): Result.Result<Runs, string> => {
  if (map.length !== ranks) return Result.fail(`the map of experts has ${map.length} ranks, ep is ${ranks}`)
  const held = new Set<number>()
  for (const [rank, own] of map.entries()) {
    const here = new Set(own)
    if (here.size !== own.length) return Result.fail(`the map of experts has one twice on rank ${rank}`)
    for (const expert of own) {
      if (expert >= count) return Result.fail(`the map has expert ${expert}, the layer has ${count}`)
      held.add(expert)
    }
  }
  for (let expert = 0; expert < count; expert++) {
    if (!held.has(expert)) return Result.fail(`the map of experts puts expert ${expert} on no rank`)
  }
  return Result.succeed(map.map(runsOf))
}

/** Runs of experts by rank. */
export const expertRuns = (
  choice: ExpertChoice,
  count: number,
  ranks: number,
  layer: number | undefined
): Result.Result<Runs, string> => {
  if (count > mostExperts) return Result.fail(`${count} experts are more than ${mostExperts}`)
  if (choice === "linear" || ranks === 1) return Result.succeed(linear(count, ranks))
  const positions = Array.from({ length: ranks }, (_, rank) => rank)
  if (choice === "ceil") {
    return Result.succeed(
      positions.map((rank) => [chunkInterval(count, ranks, rank)].filter(([from, end]) => from < end))
    )
  }
  if (choice === "round_robin") {
    const experts = Array.from({ length: count }, (_, expert) => expert)
    return Result.succeed(positions.map((rank) => runsOf(experts.filter((expert) => expert % ranks === rank))))
  }
  if (Array.isArray(choice)) return stated(choice, count, ranks)
  const maps = choice as { readonly [layer: string]: ReadonlyArray<ReadonlyArray<number>> }
  const own = layer === undefined || !Object.hasOwn(maps, String(layer)) ? undefined : maps[String(layer)]
  return own === undefined ? Result.succeed(linear(count, ranks)) : stated(own, count, ranks)
}
