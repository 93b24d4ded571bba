// SPDX-License-Identifier: Apache-2.0
/**
 * Collectives of small messages between processes of one host, against the round trip of a bare connection between two of
 * them. A round counts as the longest time that any rank waited in it.
 */
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import { type Child, startChild } from "./child.ts"
import type { BenchResult } from "./measure.ts"

const rankScript = fileURLToPath(new URL("collectives-rank.ts", import.meta.url))
const bytes = 256
const warmUps = 3000
const rounds = 1001
const sizes = [2, 8]

const start = (part: object): Child => startChild(process.execPath, [rankScript, JSON.stringify(part)])

/** All ranks, joined. */
const startGroup = async (size: number): Promise<ReadonlyArray<Child>> => {
  const first = start({ kind: "group", rank: 0, size, port: 0 })
  const { port } = await first.next()
  const others = Array.from({ length: size - 1 }, (_, at) => start({ kind: "group", rank: at + 1, size, port }))
  const ranks = [first, ...others]
  await Promise.all(ranks.map((rank) => rank.next()))
  return ranks
}

/** Microseconds of each round, after a warm-up. */
const measure = async (askers: ReadonlyArray<Child>): Promise<ReadonlyArray<number>> => {
  const askAll = async (count: number) => {
    const answers = await Promise.all(askers.map((asker) => asker.ask({ rounds: count, bytes })))
    return answers.map(({ micros }) => micros as ReadonlyArray<number>)
  }
  await askAll(warmUps)
  const taken = await askAll(rounds)
  return Array.from({ length: rounds }, (_, round) => Math.max(...taken.map((micros) => micros[round]!)))
}

export const collectives = async (): Promise<ReadonlyArray<BenchResult>> => {
  const echo = start({ kind: "echo" })
  const { port } = await echo.next()
  const asker = start({ kind: "ask", rank: 1, port })
  await asker.next()
  const floor = median(await measure([asker]))
  for (const child of [asker, echo]) child.close()
  const results: Array<BenchResult> = [
    { case: `round trip of ${bytes} bytes over a bare connection`, unit: "us", ours: floor, lowerIsBetter: true }
  ]
  for (const size of sizes) {
    const ranks = await startGroup(size)
    const taken = await measure(ranks)
    for (const rank of ranks) rank.close()
    results.push({
      case: `allGather of ${bytes} bytes, ${size} ranks, median of ${rounds} (fastest ${Math.min(...taken).toPrecision(3)}) against a bare round trip`,
      unit: "us",
      ours: median(taken),
      reference: floor,
      lowerIsBetter: true
    })
  }
  return results
}
