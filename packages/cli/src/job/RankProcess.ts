// SPDX-License-Identifier: Apache-2.0
/**
 * A process per rank that runs a program of this package: what it says over its channel, what it printed last, and how it
 * ended. Whoever started them outlives them: when the scope ends, every process is gone.
 */
import { type ChildProcess, fork } from "node:child_process"
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as LogLevel from "effect/LogLevel"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"

export type RankExit = {
  readonly _tag: "Exit"
  readonly rank: Rank
  readonly code: number | null
  readonly signal: string | null
}
export type RankEvent<Message> = { readonly _tag: "Message"; readonly rank: Rank; readonly message: Message } | RankExit

export interface RankProcess {
  readonly rank: Rank
  readonly child: ChildProcess
  /** The end of what it printed. */
  readonly output: () => string
  readonly ended: Deferred.Deferred<void>
}

export interface RankProgram<Message> {
  readonly file: string
  readonly events: Queue.Queue<RankEvent<Message>>
  /** What a rank says, where it is something that it may say. */
  readonly decode: (message: unknown) => Message | undefined
  readonly environment?: (rank: Rank) => NodeJS.ProcessEnv
}

/** How long a rank may take to end after it was asked to, or after the job was lost. */
export const graceMillis = 2_000

/** Most output of a rank that is kept for an error message. */
const keptOutput = 8_192

const startRank = <Message>(program: RankProgram<Message>, rank: Rank): RankProcess => {
  const { file, events, decode, environment } = program
  // The arguments are for people who look at a list of processes.
  const child = fork(file, ["rank", String(rank)], {
    stdio: ["ignore", "pipe", "pipe", "ipc"],
    execArgv: [],
    serialization: "json",
    ...(environment === undefined ? {} : { env: environment(rank) })
  })
  const ended = Deferred.makeUnsafe<void>()
  let output = ""
  const keep = (chunk: Buffer | string): void => {
    output = (output + chunk.toString()).slice(-keptOutput)
  }
  child.stdout?.on("data", keep)
  child.stderr?.on("data", keep)
  child.on("message", (said) => {
    const message = decode(said)
    if (message !== undefined) Queue.offerUnsafe(events, { _tag: "Message", rank, message })
  })
  const end = (code: number | null, signal: string | null): void => {
    if (Deferred.isDoneUnsafe(ended)) return
    Deferred.doneUnsafe(ended, Effect.void)
    Queue.offerUnsafe(events, { _tag: "Exit", rank, code, signal })
  }
  child.on("close", end)
  child.on("error", (error) => {
    keep(error.message)
    // A process that was never made does not close; other errors are of a channel whose process has an end of its own.
    if (child.pid === undefined) end(null, null)
  })
  return { rank, child, output: () => output.trim(), ended }
}

const stop = ({ child, ended }: RankProcess): Effect.Effect<void> =>
  Effect.gen(function* () {
    if (Deferred.isDoneUnsafe(ended)) return
    child.kill("SIGTERM")
    const gone = yield* Effect.timeoutOption(Deferred.await(ended), Duration.millis(graceMillis))
    if (gone._tag === "Some") return
    child.kill("SIGKILL")
    yield* Deferred.await(ended)
  })

export const startRanks = <Message>(
  program: RankProgram<Message>,
  ranks: ReadonlyArray<Rank>
): Effect.Effect<ReadonlyArray<RankProcess>, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => ranks.map((rank) => startRank(program, rank))),
    (processes) => Effect.forEach(processes, stop, { concurrency: "unbounded", discard: true })
  )

/** Logs what a rank's process logged; of nobody where the command itself speaks. */
export const logOfRank = (
  rank: number | undefined,
  text: string,
  level: LogLevel.Severity = "Info"
): Effect.Effect<void> => Effect.logWithLevel(level)(rank === undefined ? text : `rank ${rank}: ${text}`)
