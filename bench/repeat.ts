// SPDX-License-Identifier: Apache-2.0
/**
 * Known updates of 4 KiB between two of N processes, of which the others rest: what an update costs the two must not depend on
 * N. Beside it the same with an agreement of all ranks in every run, for two processes. A round counts as the longer time of
 * the two.
 */
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import { type Child, startChild } from "./child.ts"
import type { BenchResult } from "./measure.ts"

const rankScript = fileURLToPath(new URL("repeat-rank.ts", import.meta.url))
const warmUps = 1500
const rounds = 1001
const sizes = [2, 16, 64]

type Agreement = "always" | "new"

const startGroup = async (size: number, agreement: Agreement): Promise<ReadonlyArray<Child>> => {
  const start = (rank: number, port: unknown) =>
    startChild(process.execPath, [rankScript, JSON.stringify({ rank, size, port, agreement })])
  const first = start(0, 0)
  const { port } = await first.next()
  const ranks = [first, ...Array.from({ length: size - 1 }, (_, at) => start(at + 1, port))]
  await Promise.all(ranks.map((rank) => rank.next()))
  return ranks
}

/** Microseconds of the rounds of ranks 0 and 1. */
const measure = async (size: number, agreement: Agreement): Promise<ReadonlyArray<number>> => {
  const ranks = await startGroup(size, agreement)
  const two = ranks.slice(0, 2)
  const ask = async (count: number) => {
    const answers = await Promise.all(two.map((rank) => rank.ask({ rounds: count })))
    return answers.map(({ micros }) => micros as ReadonlyArray<number>)
  }
  await ask(warmUps)
  const taken = await ask(rounds)
  // Rank 0 serves the group, so it ends last.
  for (const rank of ranks.toReversed()) rank.close()
  return Array.from({ length: rounds }, (_, round) => Math.max(...taken.map((micros) => micros[round]!)))
}

export const repeat = async (): Promise<ReadonlyArray<BenchResult>> => {
  const results: Array<BenchResult> = []
  let ofTwo: number | undefined
  for (const size of sizes) {
    const taken = await measure(size, "new")
    ofTwo ??= median(taken)
    results.push({
      case: `known update of 4 KiB between two of ${size} processes, median of ${rounds} (fastest ${Math.min(...taken).toPrecision(3)}) against two alone`,
      unit: "us",
      ours: median(taken),
      reference: ofTwo,
      target: 1.1 * ofTwo,
      lowerIsBetter: true
    })
  }
  results.push({
    case: "the same between two processes that agree on every run, against a repetition",
    unit: "us",
    ours: median(await measure(2, "always")),
    reference: ofTwo!,
    lowerIsBetter: true
  })
  return results
}
