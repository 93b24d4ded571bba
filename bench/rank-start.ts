// SPDX-License-Identifier: Apache-2.0
/**
 * What the start of a rank takes: processor time of all threads of a rank's process, by the kernel's account, until it has met
 * the others, and until it has done a small job. Ranks are started as `reshard` starts them, with compiled code kept.
 */
import { type ChildProcess, fork } from "node:child_process"
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import type { BenchResult } from "./measure.ts"

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))
const program = here("../packages/cli/src/job/rankMain.ts")
const size = 2
const rounds = 10

const spec = {
  checkpoint: here("../examples/mnist/mnist-tinygrad.safetensors"),
  backend: "auto",
  backendPackages: [],
  packagesFrom: pathToFileURL(here("../package.json")).href,
  verify: true,
  deadlineMillis: 60_000,
  from: { tp: 1, pp: 1, dp: 1 },
  to: { tp: size, pp: 1, dp: 1 },
  ranks: "collocated",
  rules: { rules: [{ match: "*", shard: "replicate" }] },
  out: null
}

/** Seconds of processor time that a process has had. */
const spentBy = ({ pid }: ChildProcess): number =>
  readdirSync(`/proc/${pid}/task`).reduce((sum, thread) => {
    const [nanos] = readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "utf8").split(" ")
    return sum + Number(nanos) / 1e9
  }, 0)

interface Spent {
  readonly met: ReadonlyArray<number>
  readonly done: ReadonlyArray<number>
}

const oneJob = (cache: string): Promise<Spent> =>
  new Promise((resolve, reject) => {
    const [met, done]: [Array<number>, Array<number>] = [[], []]
    let [started, ended] = [0, 0]
    const ranks = Array.from({ length: size }, (_, rank) =>
      fork(program, ["rank", String(rank)], { execArgv: [], env: { ...process.env, NODE_COMPILE_CACHE: cache } })
    )
    const send = (rank: number, port: number) => void ranks[rank]!.send({ _tag: "Job", spec, rank, size, port })
    for (const child of ranks) {
      child.on("message", (message: { readonly _tag: string; readonly port?: number }) => {
        if (message._tag === "Started" && ++started === size) send(0, 0)
        if (message._tag === "Listening") for (let rank = 1; rank < size; rank++) send(rank, message.port!)
        if (message._tag === "Joined") met.push(spentBy(child))
        if (message._tag === "Finished") done.push(spentBy(child))
        if (message._tag === "Failed") reject(new Error(JSON.stringify(message)))
      })
      child.on("exit", () => {
        if (++ended === size) resolve({ met, done })
      })
    }
  })

export const rankStart = async (): Promise<ReadonlyArray<BenchResult>> => {
  const cache = mkdtempSync(path.join(tmpdir(), "tensorferry-compiled-"))
  try {
    const jobs: Array<Spent> = []
    // The first ones fill the cache.
    for (let round = -2; round < rounds; round++) {
      const spent = await oneJob(cache)
      if (round >= 0) jobs.push(spent)
    }
    const of = (key: keyof Spent) => median(jobs.flatMap((job) => job[key]))
    return [
      { case: "a rank until it has met the other", unit: "s", ours: of("met"), target: 0.7, lowerIsBetter: true },
      { case: "a rank until a job of 0.4 MB is done", unit: "s", ours: of("done"), lowerIsBetter: true }
    ]
  } finally {
    rmSync(cache, { recursive: true, force: true })
  }
}
