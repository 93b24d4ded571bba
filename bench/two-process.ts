// SPDX-License-Identifier: Apache-2.0
/**
 * Two processes of one host: one tensor from rank 0 to rank 1 through `CopyService`, the same batch repeated, against
 * gloo's send and recv, taking turns in one run. A run is timed from after a barrier to its end on both ranks. Then the
 * same with a tracer that keeps all spans against without, in turns too; metrics count in both.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import { type Child, startChild } from "./child.ts"
import type { BenchResult } from "./measure.ts"
import { type Reference, startTorch } from "./reference.ts"

interface TwoProcessCase {
  readonly name: string
  readonly byteLength: number
  readonly rounds: number
  /** Ours to gloo's. */
  readonly target?: number
}

const cases: ReadonlyArray<TwoProcessCase> = [
  { name: "256 MiB", byteLength: 2 ** 28, rounds: 15, target: 3 },
  { name: "4 KiB", byteLength: 4096, rounds: 201 }
]
/** What the tracer costs is looked for in more rounds. */
const tracedCases: ReadonlyArray<TwoProcessCase> = [
  { name: "256 MiB", byteLength: 2 ** 28, rounds: 201 },
  { name: "4 KiB", byteLength: 4096, rounds: 1001 }
]
const warmUps = 3

const rankScript = fileURLToPath(new URL("two-process-rank.ts", import.meta.url))

/** Both ranks, joined: see two-process-rank.ts. */
export const startRanks = async (): Promise<ReadonlyArray<Child>> => {
  const start = (rank: number, port: unknown) =>
    startChild(process.execPath, [rankScript, JSON.stringify({ rank, port })])
  const first = start(0, 0)
  const { port } = await first.next()
  const ranks = [first, start(1, port)]
  await Promise.all(ranks.map((rank) => rank.next()))
  return ranks
}

const measure = async (
  ranks: ReadonlyArray<Child>,
  reference: Reference | undefined,
  { name, byteLength, rounds, target }: TwoProcessCase
): Promise<BenchResult> => {
  await Promise.all(
    [...ranks, ...(reference === undefined ? [] : [reference])].map((each) => each.ask({ case: byteLength }))
  )
  const [ours, theirs]: [Array<number>, Array<number>] = [[], []]
  let path: unknown
  for (let round = -warmUps; round < rounds; round++) {
    const answers = await Promise.all(ranks.map((rank) => rank.ask({ run: true })))
    path = answers[1]!.path
    const answer = await reference?.ask({ run: true })
    if (round < 0) continue
    ours.push(Math.max(...answers.map(({ seconds }) => Number(seconds))))
    if (answer !== undefined) theirs.push(Number(answer.seconds))
  }
  const isLarge = target !== undefined
  const value = (seconds: number) => (isLarge ? byteLength / 1e9 / seconds : seconds * 1e6)
  const fastest = (all: ReadonlyArray<number>) => value(Math.min(...all)).toPrecision(3)
  const beside = theirs.length === 0 ? "; no PyTorch found" : ` against ${fastest(theirs)}`
  return {
    case: `${name} by ${path}, median of ${rounds} (fastest ${fastest(ours)}${beside})`,
    unit: isLarge ? "GB/s" : "us",
    ours: value(median(ours)),
    ...(theirs.length === 0 ? {} : { reference: value(median(theirs)) }),
    ...(theirs.length === 0 || !isLarge ? {} : { target: target * value(median(theirs)) }),
    lowerIsBetter: !isLarge
  }
}

/** Microseconds with a tracer against those without; the cost is that of a round against the one beside it. */
const measureTracer = async (
  ranks: ReadonlyArray<Child>,
  { name, byteLength, rounds }: TwoProcessCase
): Promise<BenchResult> => {
  await Promise.all(ranks.map((rank) => rank.ask({ case: byteLength })))
  const run = async (isTraced: boolean): Promise<number> => {
    const answers = await Promise.all(ranks.map((rank) => rank.ask({ run: true, isTraced })))
    return Math.max(...answers.map(({ seconds }) => Number(seconds))) * 1e6
  }
  const [traced, plain]: [Array<number>, Array<number>] = [[], []]
  for (let round = -warmUps; round < rounds; round++) {
    // Who goes first changes, as the second may find things warmer.
    const isFirst = round % 2 === 0
    const first = await run(isFirst)
    const second = await run(!isFirst)
    if (round < 0) continue
    traced.push(isFirst ? first : second)
    plain.push(isFirst ? second : first)
  }
  const counts = await Promise.all(ranks.map((rank) => rank.ask({ countSpans: true })))
  const spans = Math.max(...counts.map((count) => Number(count.spans)))
  const cost = median(traced.map((micros, round) => micros - plain[round]!))
  const perRun = Math.round(spans / (rounds + warmUps))
  return {
    case: `${name}, all spans kept (${perRun} a run) and metrics, against metrics only: ${cost.toFixed(0)} us more, median of ${rounds} pairs`,
    unit: "us",
    ours: median(traced),
    reference: median(plain),
    lowerIsBetter: true
  }
}

export const twoProcess = async (): Promise<ReadonlyArray<BenchResult>> => {
  const folder = mkdtempSync(join(tmpdir(), "tensorferry-bench-"))
  const reference = await startTorch("torch_gloo.py", [folder])
  const ranks = await startRanks()
  const results: Array<BenchResult> = []
  for (const each of cases) results.push(await measure(ranks, reference, each))
  for (const each of tracedCases) results.push(await measureTracer(ranks, each))
  for (const child of [...ranks, ...(reference === undefined ? [] : [reference])]) child.close()
  rmSync(folder, { recursive: true, force: true })
  return results
}
