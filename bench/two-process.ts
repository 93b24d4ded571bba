/**
 * Two processes of one host: one tensor from rank 0 to rank 1 through `CopyService`, the same batch repeated, against
 * gloo's send and recv, taking turns in one run. A run is timed from after a barrier to its end on both ranks.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { type Child, startChild } from "./child.ts"
import { type BenchResult, median } from "./measure.ts"
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
const warmUps = 3

const rankScript = fileURLToPath(new URL("two-process-rank.ts", import.meta.url))

/** Both ranks, joined. */
const startRanks = async (): Promise<ReadonlyArray<Child>> => {
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

export const twoProcess = async (): Promise<ReadonlyArray<BenchResult>> => {
  const folder = mkdtempSync(join(tmpdir(), "tensorferry-bench-"))
  const reference = await startTorch("torch_gloo.py", [folder])
  const ranks = await startRanks()
  const results: Array<BenchResult> = []
  for (const each of cases) results.push(await measure(ranks, reference, each))
  for (const child of [...ranks, ...(reference === undefined ? [] : [reference])]) child.close()
  rmSync(folder, { recursive: true, force: true })
  return results
}
