// SPDX-License-Identifier: Apache-2.0
/**
 * Known updates of 4 KiB between two of N processes, of which the others rest: what an update costs the two must not depend on
 * N. Beside it the same with an agreement of all ranks in every run, for two processes, and gloo's send and recv of as many
 * bytes, which takes turns with ours. A round counts as the longer time of the two.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import { type Child, startChild } from "./child.ts"
import type { BenchResult } from "./measure.ts"
import { startTorch } from "./reference.ts"

const rankScript = fileURLToPath(new URL("repeat-rank.ts", import.meta.url))
const warmUps = 1500
const rounds = 1001
const sizes = [2, 16, 64]
/** What else runs on the machine is the same for those that take turns. */
const turns = 20

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

interface Group {
  /** Microseconds of this many rounds of ranks 0 and 1. */
  readonly run: (count: number) => Promise<ReadonlyArray<number>>
  readonly close: () => void
}

const makeGroup = async (size: number, agreement: Agreement): Promise<Group> => {
  const ranks = await startGroup(size, agreement)
  const two = ranks.slice(0, 2)
  const run = async (count: number): Promise<ReadonlyArray<number>> => {
    const answers = await Promise.all(two.map((rank) => rank.ask({ rounds: count })))
    const taken = answers.map(({ micros }) => micros as ReadonlyArray<number>)
    return Array.from({ length: count }, (_, round) => Math.max(...taken.map((micros) => micros[round]!)))
  }
  await run(warmUps)
  return {
    run,
    // Rank 0 serves the group, so it ends last.
    close: () => {
      for (const rank of ranks.toReversed()) rank.close()
    }
  }
}

const measure = async (size: number, agreement: Agreement): Promise<ReadonlyArray<number>> => {
  const group = await makeGroup(size, agreement)
  const taken = await group.run(rounds)
  group.close()
  return taken
}

/**
 * Groups of all sizes are there at once and take turns: how many processes the machine has to look after is then the same
 * for each, and what is left is what N itself costs.
 */
const measureSizes = async (): Promise<ReadonlyArray<ReadonlyArray<number>>> => {
  const groups: Array<Group> = []
  for (const size of sizes) groups.push(await makeGroup(size, "new"))
  const taken = groups.map((): Array<number> => [])
  for (let turn = 0; turn < turns; turn++)
    for (const [at, group] of groups.entries()) taken[at]!.push(...(await group.run(100)))
  for (const group of groups) group.close()
  return taken
}

const measureBesideGloo = async (): Promise<BenchResult> => {
  const folder = mkdtempSync(join(tmpdir(), "tensorferry-bench-"))
  const gloo = await startTorch("torch_gloo.py", [folder])
  const group = await makeGroup(2, "new")
  const [ours, theirs]: [Array<number>, Array<number>] = [[], []]
  await gloo?.ask({ case: 4096 })
  for (let turn = 0; turn <= turns; turn++) {
    const taken = await group.run(100)
    const moved: Array<number> = []
    for (let move = 0; gloo !== undefined && move < 100; move++) {
      moved.push(Number((await gloo.ask({ run: true })).seconds) * 1e6)
    }
    // The first turn of gloo is cold.
    if (turn === 0) continue
    ours.push(...taken)
    theirs.push(...moved)
  }
  group.close()
  gloo?.close()
  rmSync(folder, { recursive: true, force: true })
  const fastest = (all: ReadonlyArray<number>) => Math.min(...all).toPrecision(3)
  const beside = theirs.length === 0 ? "; no PyTorch found" : ` against ${fastest(theirs)}`
  return {
    case: `known update of 4 KiB between two processes, beside gloo's send and recv, median of ${ours.length} (fastest ${fastest(ours)}${beside})`,
    unit: "us",
    ours: median(ours),
    ...(theirs.length === 0 ? {} : { reference: median(theirs), target: 2 * median(theirs) }),
    lowerIsBetter: true
  }
}

export const repeat = async (): Promise<ReadonlyArray<BenchResult>> => {
  const results: Array<BenchResult> = [await measureBesideGloo()]
  const all = await measureSizes()
  const ofTwo = median(all[0]!)
  for (const [at, taken] of all.entries()) {
    results.push({
      case: `known update of 4 KiB between two of ${sizes[at]} processes, median of ${taken.length} (fastest ${Math.min(...taken).toPrecision(3)}) against two alone`,
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
    reference: ofTwo,
    lowerIsBetter: true
  })
  return results
}
