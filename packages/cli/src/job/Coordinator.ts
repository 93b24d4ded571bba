/**
 * Starts one process per rank, hands out the job, follows progress and collects results.
 *
 * Invariant: when the Effect ends, in whatever way, every process that it started is gone and the temporary output folder
 * with it.
 */
import { type ChildProcess, fork } from "node:child_process"
import { rm } from "node:fs/promises"
import { fileURLToPath } from "node:url"
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { FromRank, type JobSpec, type Phase, type RankFailure, type RankReport, ToRank } from "./JobSpec.ts"

export interface RankProgress {
  readonly rank: Rank
  readonly phase: Phase
  readonly done: number
  readonly total: number
}

/** How a rank's process ended. */
export type RankOutcome =
  | { readonly _tag: "Finished"; readonly rank: Rank; readonly report: RankReport }
  | { readonly _tag: "Failed"; readonly rank: Rank; readonly failure: RankFailure }

const decode = Schema.decodeUnknownResult(FromRank)
const encode = Schema.encodeSync(ToRank)

/** How long a rank may take to end after all others have, once one of them failed. */
const graceMillis = 2_000

type Event =
  | { readonly _tag: "Message"; readonly rank: Rank; readonly message: FromRank }
  | { readonly _tag: "Exit"; readonly rank: Rank; readonly code: number | null; readonly signal: string | null }

interface RankProcess {
  readonly rank: Rank
  readonly child: ChildProcess
  readonly output: () => string
  readonly ended: Deferred.Deferred<void>
}

const workerFile = fileURLToPath(
  new URL(`./rankMain${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url)
)

/** Most output of a rank that is kept for an error message. */
const keptOutput = 8_192

const stop = (started: RankProcess): Effect.Effect<void> =>
  Effect.gen(function* () {
    if (started.child.exitCode !== null || started.child.signalCode !== null) return
    started.child.kill("SIGTERM")
    const gone = yield* Effect.timeoutOption(Deferred.await(started.ended), Duration.millis(graceMillis))
    if (gone._tag === "Some") return
    started.child.kill("SIGKILL")
    yield* Deferred.await(started.ended)
  })

const startRank = (rank: Rank, events: Queue.Queue<Event>): Effect.Effect<RankProcess, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync((): RankProcess => {
      const child = fork(workerFile, [], {
        stdio: ["ignore", "pipe", "pipe", "ipc"],
        execArgv: [],
        serialization: "json"
      })
      const ended = Deferred.makeUnsafe<void>()
      let output = ""
      const keep = (chunk: Buffer): void => {
        output = (output + chunk.toString("utf8")).slice(-keptOutput)
      }
      child.stdout?.on("data", keep)
      child.stderr?.on("data", keep)
      child.on("message", (message) => {
        const decoded = decode(message)
        if (Result.isSuccess(decoded)) Queue.offerUnsafe(events, { _tag: "Message", rank, message: decoded.success })
      })
      const end = (code: number | null, signal: string | null): void => {
        if (!Deferred.isDoneUnsafe(ended)) {
          Deferred.doneUnsafe(ended, Effect.void)
          Queue.offerUnsafe(events, { _tag: "Exit", rank, code, signal })
        }
      }
      child.on("close", end)
      child.on("error", () => end(null, null))
      return { rank, child, output: () => output, ended }
    }),
    stop
  )

const endedWithoutResult = (rank: Rank, event: Event & { readonly _tag: "Exit" }, output: string): RankFailure => {
  const how = event.signal === null ? `ended with exit code ${event.code}` : `was ended by ${event.signal}`
  const last = output.trim() === "" ? "" : ` Its last output: ${output.trim().split("\n").slice(-5).join(" | ")}`
  const detail = `The process of rank ${rank} ${how} before it had a result.${last}`
  const remedy = "See whether it ran out of memory or was stopped from outside."
  return {
    tag: "ModelError",
    reason: "RankEnded",
    message: `RankEnded (rank ${rank}): ${detail} ${remedy}`,
    fields: { rank, detail, remedy, scope: "peer", isRetryable: true },
    ranks: [rank]
  }
}

/** True where every rank that still runs is one that a failure of the others names: it hangs. */
const isBlamed = (alive: ReadonlySet<Rank>, outcomes: ReadonlyMap<Rank, RankOutcome>): boolean => {
  const named = new Set(
    [...outcomes.values()].flatMap((outcome) => (outcome._tag === "Failed" ? outcome.failure.ranks : []))
  )
  return alive.size > 0 && [...alive].every((rank) => named.has(rank) && !outcomes.has(rank))
}

/** Runs the job on `size` new processes of this machine; each rank's outcome, by rank. */
export const runProcesses = Effect.fn("runProcesses")(function* (
  spec: JobSpec,
  size: number,
  onProgress: (progress: RankProgress) => Effect.Effect<void>
): Effect.fn.Return<ReadonlyArray<RankOutcome>, never, Scope.Scope> {
  const { out } = spec
  if (out !== null) {
    yield* Effect.addFinalizer(() =>
      Effect.ignore(Effect.tryPromise(() => rm(out.temporary, { recursive: true, force: true })))
    )
  }
  const events = yield* Queue.unbounded<Event>()
  const ranks = Array.from({ length: size }, (_, rank) => rank)
  const processes = yield* Effect.forEach(ranks, (rank) => startRank(rank, events))
  const outcomes = new Map<Rank, RankOutcome>()
  const alive = new Set(ranks)
  const send = (rank: Rank, port: number): void => {
    const { child } = processes[rank]!
    // A rank that just ended reports so by its exit.
    if (child.connected) child.send(encode({ _tag: "Job", spec, rank, size, port }), () => undefined)
  }
  send(0, 0)
  const kill = (hanging: Iterable<Rank>): void => {
    for (const rank of hanging) processes[rank]!.child.kill("SIGKILL")
  }
  let failedAt: number | undefined
  while (alive.size > 0) {
    // After a failure all ranks end by themselves within the deadline, except one that does not run any more.
    const patience =
      failedAt === undefined
        ? Duration.infinity
        : Duration.millis(Math.max(0, failedAt + spec.deadlineMillis + graceMillis - performance.now()))
    const event = yield* Effect.timeoutOption(Queue.take(events), patience)
    if (Option.isNone(event)) {
      kill(alive)
      failedAt = undefined
      continue
    }
    const { rank } = event.value
    if (event.value._tag === "Message") {
      const { message } = event.value
      if (message._tag === "Listening") for (const other of ranks.slice(1)) send(other, message.port)
      if (message._tag === "Progress") yield* onProgress({ rank, ...message })
      if (message._tag === "Finished") outcomes.set(rank, { _tag: "Finished", rank, report: message.report })
      if (message._tag === "Failed") outcomes.set(rank, { _tag: "Failed", rank, failure: message.failure })
      continue
    }
    alive.delete(rank)
    if (!outcomes.has(rank)) {
      const failure = endedWithoutResult(rank, event.value, processes[rank]!.output())
      outcomes.set(rank, { _tag: "Failed", rank, failure })
    }
    if (outcomes.get(rank)!._tag === "Failed") failedAt ??= performance.now()
    if (isBlamed(alive, outcomes)) kill(alive)
  }
  return ranks.map((rank) => outcomes.get(rank)!)
})
