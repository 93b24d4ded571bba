// SPDX-License-Identifier: Apache-2.0
/**
 * Starts one process per rank of a piece of work and gathers what they print. A rank that ends early fails what it did not
 * report; nothing outlasts its time limit.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { createInterface } from "node:readline"
import type { RankLine, RankSpec } from "./work.ts"

export interface JobResult {
  /** By rank. */
  readonly lines: ReadonlyArray<ReadonlyArray<RankLine>>
  /** Why ranks ended, where not with 0. */
  readonly failures: ReadonlyArray<string>
}

const startRank = (program: ReadonlyArray<string>, spec: RankSpec) => {
  const [command, ...args] = program
  const child: ChildProcess = spawn(command!, [...args, "rank", JSON.stringify(spec)], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, LOCAL_RANK: String(spec.rank) }
  })
  const lines: Array<RankLine> = []
  let errors = ""
  child.stderr!.on("data", (chunk) => {
    errors = (errors + String(chunk)).slice(-4000)
  })
  let tellPort: (port: number) => void = () => {}
  const port = new Promise<number>((resolve) => {
    tellPort = resolve
  })
  createInterface({ input: child.stdout! }).on("line", (text) => {
    if (!text.startsWith("{")) return
    const line = JSON.parse(text) as RankLine
    if (line.event === "port") tellPort(line.port)
    lines.push(line)
  })
  const ended = new Promise<string | undefined>((resolve) => {
    child.once("close", (code, signal) => {
      tellPort(0)
      resolve(code === 0 ? undefined : `rank ${spec.rank} ended with ${code ?? signal}: ${errors.slice(-1500)}`)
    })
  })
  return { child, port, ended, lines }
}

/** `program` starts this program again; a rank gets its work as arguments behind it. */
export const runJob = async (
  program: ReadonlyArray<string>,
  spec: Omit<RankSpec, "rank" | "port">,
  limitSeconds: number
): Promise<JobResult> => {
  const first = startRank(program, { ...spec, rank: 0, port: 0 })
  const ranks = [first]
  const limit = setTimeout(() => {
    for (const { child } of ranks) child.kill("SIGKILL")
  }, limitSeconds * 1000)
  const port = await first.port
  for (let rank = 1; rank < spec.size && port !== 0; rank++) ranks.push(startRank(program, { ...spec, rank, port }))
  const ends = await Promise.all(ranks.map(({ ended }) => ended))
  clearTimeout(limit)
  return { lines: ranks.map(({ lines }) => lines), failures: ends.filter((end) => end !== undefined) }
}
