// SPDX-License-Identifier: Apache-2.0
/** Two ranks as processes on hosts of a test, and what they say. */
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"
import type { Host } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { HostRankAnswer, HostRankInput, HostRankRequest } from "./fixtures/host-rank.ts"

const script = fileURLToPath(new URL("fixtures/host-rank.ts", import.meta.url))

/** One rank's process. */
export interface HostRank {
  readonly child: ChildProcess
  readonly ask: (request: HostRankRequest) => void
  /** The next line of this kind; fails where the process ends first. */
  readonly next: (event: HostRankAnswer["event"]) => Promise<HostRankAnswer>
  readonly kill: (signal: NodeJS.Signals) => void
}

const startRank = (input: HostRankInput, host: Host | undefined): HostRank => {
  const values = [script, JSON.stringify(input)]
  const settings = { stdio: ["pipe", "pipe", "pipe"] as ["pipe", "pipe", "pipe"] }
  const child = host?.start(process.execPath, values, settings) ?? spawn(process.execPath, values, settings)
  const closed = once(child, "close")
  let errors = ""
  child.stderr!.on("data", (chunk) => {
    errors += String(chunk)
  })
  child.stdin!.on("error", () => {})
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]()
  return {
    child,
    ask: (request) => void child.stdin!.write(`${JSON.stringify(request)}\n`),
    next: async (event) => {
      while (true) {
        const line = await lines.next()
        if (line.done === true) {
          const [code, signal] = await closed
          assert.fail(`rank ${input.rank} ended by ${signal ?? code} and did not say ${event}: ${errors}`)
        }
        const answer: HostRankAnswer = JSON.parse(line.value)
        if (answer.event === event) return answer
      }
    },
    kill: (signal) => void child.kill(signal)
  }
}

/** Both ranks, prepared; they are killed when the scope ends. */
export const startRanks = (
  shape: Pick<HostRankInput, "byteLength" | "deadlineMillis" | "options">,
  hosts: ReadonlyArray<Host> = []
): Effect.Effect<readonly [HostRank, HostRank], never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const host = hosts[0]?.addresses[0] ?? "127.0.0.1"
      const first = startRank({ ...shape, rank: 0, host, port: 0 }, hosts[0])
      const { port } = await first.next("port")
      const second = startRank({ ...shape, rank: 1, host, port: port! }, hosts[1])
      await Promise.all([first.next("prepared"), second.next("prepared")])
      return [first, second] as const
    }),
    (ranks) =>
      Effect.promise(() =>
        Promise.all(
          ranks.map(
            ({ child, kill }) =>
              new Promise((resolve) => {
                if (child.exitCode !== null || child.signalCode !== null) return resolve(undefined)
                child.once("close", resolve)
                kill("SIGKILL")
              })
          )
        )
      )
  )
