// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks that run on hosts of their own, as tests talk to them. The group meets over the hosts' last link, so that a test can cut
 * the others without parting the group.
 */
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import type { Host } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import type { TcpOptions } from "../src/options.ts"
import type { HostRankAnswer, HostRankInput, HostRankRequest } from "./fixtures/host-rank.ts"

const script = fileURLToPath(new URL("fixtures/host-rank.ts", import.meta.url))

export interface HostRank {
  readonly host: Host
  /** The next line; undefined where the process has ended. */
  readonly next: () => Promise<HostRankAnswer | undefined>
  readonly tell: (request: HostRankRequest) => void
  readonly ask: (request: HostRankRequest) => Promise<HostRankAnswer | undefined>
  readonly kill: () => void
}

const startRank = (host: Host, input: HostRankInput): HostRank => {
  const child = host.start(process.execPath, [script, JSON.stringify(input)], { stdio: ["pipe", "pipe", "inherit"] })
  child.stdin!.on("error", () => {})
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]()
  const next = async (): Promise<HostRankAnswer | undefined> => {
    const line = await lines.next()
    return line.done === true ? undefined : JSON.parse(line.value)
  }
  const tell = (request: HostRankRequest) => void child.stdin!.write(`${JSON.stringify(request)}\n`)
  return {
    host,
    next,
    tell,
    ask: (request) => {
      tell(request)
      return next()
    },
    kill: () => void child.kill("SIGKILL")
  }
}

/** A rank on each host, joined; `options` are those of each. */
export const startRanks = (
  hosts: ReadonlyArray<Host>,
  options: (rank: number) => TcpOptions,
  deadlineMillis: number
): Effect.Effect<ReadonlyArray<HostRank>> =>
  Effect.promise(async () => {
    const inputOf = (rank: number, port: number): HostRankInput => ({
      rank,
      size: hosts.length,
      host: hosts[0]!.addresses.at(-1)!,
      port,
      deadlineMillis,
      options: options(rank)
    })
    const first = startRank(hosts[0]!, inputOf(0, 0))
    const port = (await first.next())?.port ?? 0
    const ranks = [first, ...hosts.slice(1).map((host, at) => startRank(host, inputOf(at + 1, port)))]
    await Promise.all(ranks.map((rank) => rank.next()))
    return ranks
  })

/** The same request to all, at once. */
export const askAll = (ranks: ReadonlyArray<HostRank>, request: HostRankRequest) =>
  Effect.promise(() => Promise.all(ranks.map((rank) => rank.ask(request))))

/** Rank 0 is to send so many bytes to rank 1. */
export const prepareOneWay = ([first, second]: ReadonlyArray<HostRank>, byteLength: number) =>
  Effect.promise(() =>
    Promise.all([
      first!.ask({ prepare: { sends: [[1, byteLength]], receives: [] } }),
      second!.ask({ prepare: { sends: [], receives: [[0, byteLength]] } })
    ])
  )

/** Starts a run on both, and cancels the one where the other fails, as a service would. */
export const runTogether = (
  ranks: ReadonlyArray<HostRank>,
  version: number,
  meanwhile: () => Promise<void> = async () => {}
) =>
  Effect.promise(async () => {
    const answers = ranks.map(async (rank, at) => {
      const answer = await rank.ask({ run: version })
      if (answer?.outcome !== "Ok") for (const other of ranks) if (other !== ranks[at]) other.tell({ cancel: true })
      return answer
    })
    await meanwhile()
    return Promise.all(answers)
  })
