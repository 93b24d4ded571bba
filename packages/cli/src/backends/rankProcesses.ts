/**
 * Starts one process per rank for a piece of work on a backend, lets them meet, and hands on what they tell.
 *
 * Invariants: when the Effect ends, in whatever way, every process that it started is gone. It ends: ranks watch each other
 * by the deadline of their group, and processes that tell nothing for too long are killed. A process that dies takes
 * nothing with it but itself: how it ended is a value.
 */
import { type ChildProcess, fork } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"

/** What a rank is told. The work itself is known to those who start it and to the program that does it. */
export const ToRank = Schema.Struct({
  rank: Schema.Int,
  size: Schema.Int,
  port: Schema.Int,
  deadlineMillis: Schema.Int,
  work: Schema.Json
})

export const FromRank = Schema.TaggedUnion({
  Listening: { port: Schema.Int },
  Told: { news: Schema.Json },
  Failed: { message: Schema.String }
})

const encode = Schema.encodeSync(ToRank)
const decode = Schema.decodeUnknownOption(FromRank)

/** Most output of a rank that is kept to explain its end. */
const keptOutput = 4096
/** Time in which a process that was asked to end may do so by itself. */
const graceMillis = 2_000

/** The file of a program of this folder, as source or as it is published. */
export const programFile = (name: string): string =>
  fileURLToPath(new URL(`./${name}${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url))

export interface RankWork {
  /** The program of every rank; see rankProgram.ts. */
  readonly file: string
  readonly size: number
  readonly work: Schema.Json
  /** Of the group's collectives. */
  readonly deadlineMillis: number
  /** Processes that tell nothing for so long are killed. */
  readonly quietMillis: number
  readonly onNews: (rank: number, news: Schema.Json) => Effect.Effect<void>
}

/** Why a rank ended, where not well. */
export interface RankEnd {
  readonly rank: number
  readonly cause: string | undefined
}

type Event =
  | { readonly rank: number; readonly message: typeof FromRank.Type }
  | { readonly rank: number; readonly code: number | null; readonly signal: string | null }

interface Started {
  readonly child: ChildProcess
  readonly output: () => string
  readonly ended: Deferred.Deferred<void>
}

const start = ({ file }: RankWork, rank: number, events: Queue.Queue<Event>): Started => {
  const child = fork(file, ["rank", String(rank)], {
    stdio: ["ignore", "pipe", "pipe", "ipc"],
    execArgv: [],
    // Backends choose the device of this number.
    env: { ...process.env, LOCAL_RANK: String(rank) }
  })
  const ended = Deferred.makeUnsafe<void>()
  let output = ""
  const keep = (chunk: Buffer | string): void => {
    output = (output + chunk.toString()).slice(-keptOutput)
  }
  child.stdout?.on("data", keep)
  child.stderr?.on("data", keep)
  child.on("message", (message) => {
    const decoded = decode(message)
    if (Option.isSome(decoded)) Queue.offerUnsafe(events, { rank, message: decoded.value })
  })
  const end = (code: number | null, signal: string | null): void => {
    if (Deferred.isDoneUnsafe(ended)) return
    Deferred.doneUnsafe(ended, Effect.void)
    Queue.offerUnsafe(events, { rank, code, signal })
  }
  child.on("close", end)
  child.on("error", (error) => {
    keep(error.message)
    if (child.pid === undefined) end(null, null)
  })
  return { child, output: () => output.trim(), ended }
}

const stop = ({ child, ended }: Started): Effect.Effect<void> =>
  Effect.gen(function* () {
    if (Deferred.isDoneUnsafe(ended)) return
    child.kill("SIGTERM")
    const gone = yield* Effect.timeoutOption(Deferred.await(ended), Duration.millis(graceMillis))
    if (Option.isSome(gone)) return
    child.kill("SIGKILL")
    yield* Deferred.await(ended)
  })

/** Runs the work to its end on every rank; how each ended, by rank. */
export const runRanks = Effect.fn("runRanks")(function* (given: RankWork): Effect.fn.Return<ReadonlyArray<RankEnd>> {
  const { size, deadlineMillis, quietMillis, work, onNews } = given
  const events = yield* Queue.unbounded<Event>()
  const ranks = Array.from({ length: size }, (_, rank) => rank)
  const all = Effect.acquireRelease(
    Effect.sync(() => ranks.map((rank) => start(given, rank, events))),
    (processes) => Effect.forEach(processes, stop, { concurrency: "unbounded", discard: true })
  )
  const follow = Effect.gen(function* () {
    const processes = yield* all
    const causes = new Map<number, string>()
    const alive = new Set(ranks)
    const send = (rank: number, port: number): void => {
      const { child } = processes[rank]!
      if (child.connected) child.send(encode({ rank, size, port, deadlineMillis, work }), () => undefined)
    }
    send(0, 0)
    while (alive.size > 0) {
      const next = yield* Effect.timeoutOption(Queue.take(events), Duration.millis(quietMillis))
      if (Option.isNone(next)) {
        for (const rank of alive) {
          causes.set(rank, `the process told nothing for ${quietMillis / 1000} s and was killed`)
          processes[rank]!.child.kill("SIGKILL")
        }
        continue
      }
      const event = next.value
      if ("message" in event) {
        const { rank, message } = event
        if (message._tag === "Listening") for (const other of ranks.slice(1)) send(other, message.port)
        else if (message._tag === "Failed") causes.set(rank, message.message)
        else yield* onNews(rank, message.news)
        continue
      }
      const { rank, code, signal } = event
      alive.delete(rank)
      if (code === 0 || causes.has(rank)) continue
      const last = processes[rank]!.output()
      const how = signal === null ? `ended with exit code ${code}` : `was ended by ${signal}`
      causes.set(rank, `the process ${how}${last === "" ? "" : `: ${last}`}`)
      // Without it nobody gets a port.
      if (rank === 0) for (const other of alive) processes[other]!.child.kill("SIGTERM")
    }
    return ranks.map((rank) => ({ rank, cause: causes.get(rank) }))
  })
  return yield* Effect.scoped(follow)
})
