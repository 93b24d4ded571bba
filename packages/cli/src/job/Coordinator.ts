// SPDX-License-Identifier: Apache-2.0
/**
 * Starts one process per rank, hands out the job, follows progress and collects results.
 *
 * Invariants: when the Effect ends, in whatever way, every process that it started is gone and the temporary output folder
 * with it. It ends: ranks watch each other by the group's deadline, and this process watches what the group cannot see,
 * which is ranks that have not joined yet and ranks that alone are left.
 */
import { rm } from "node:fs/promises"
import { fileURLToPath } from "node:url"
import type { Rank } from "@tensorferry/core/base/Ids"
import { describeCrash } from "@tensorferry/core/base/UnknownCause"
import { ticking, tickMillisOf } from "@tensorferry/core/service/RunningTime"
import { inSeconds, untilWords } from "@tensorferry/core/service/sayWaiting"
import { deviceInFlight } from "@tensorferry/model/BoundedRegions"
import type { Phase } from "@tensorferry/model/Phase"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { type AnyJobSpec, FromRank, type RankFailure, type RankReport, ToRank } from "./JobSpec.ts"
import { graceMillis, logOfRank, type RankEvent, type RankExit, startRanks } from "./RankProcess.ts"

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
  /** Ended by the command because the job was lost; another rank has failed. */
  | { readonly _tag: "Stopped"; readonly rank: Rank }

const decodeKnown = Schema.decodeUnknownOption(FromRank)
const decode = (message: unknown): FromRank | undefined => Option.getOrUndefined(decodeKnown(message))
const encode = Schema.encodeSync(ToRank)

/** Time for a rank's program to start on a machine that starts the others too; comes on top of the deadline. */
const startMillis = 2_000

type Event = RankEvent<FromRank>

const workerFile = fileURLToPath(
  new URL(`./rankMain${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url)
)

/** A rank of a job on devices: its number on this host, and as many threads for files as it has portions under way. */
const deviceEnvironment = (rank: Rank): NodeJS.ProcessEnv => ({
  UV_THREADPOOL_SIZE: String(deviceInFlight),
  ...process.env,
  LOCAL_RANK: String(rank)
})

const rankEnded = (rank: Rank, detail: string, remedy: string): RankOutcome => ({
  _tag: "Failed",
  rank,
  failure: {
    tag: "ModelError",
    reason: "RankEnded",
    message: `RankEnded (rank ${rank}): ${detail} ${remedy}`,
    fields: { rank, detail, remedy, scope: "peer", isRetryable: true },
    ranks: [rank]
  }
})

const endedWithoutResult = (rank: Rank, event: RankExit, output: string): RankOutcome => {
  const how = event.signal === null ? `ended with exit code ${event.code}` : `was ended by ${event.signal}`
  const crash = describeCrash(output)
  const last =
    output === ""
      ? ""
      : crash === undefined
        ? ` Its last output: ${output.split("\n").slice(-5).join(" | ")}`
        : ` It crashed: ${crash}.`
  return rankEnded(
    rank,
    `The process of rank ${rank} ${how} before it had a result.${last}`,
    "See whether it ran out of memory or was stopped from outside."
  )
}

const hung = (rank: Rank, what: string): RankOutcome =>
  rankEnded(
    rank,
    `The process of rank ${rank} ${what}, and was ended.`,
    "See whether it was frozen or the machine is overloaded, or raise --deadline."
  )

const formatSeconds = (millis: number): string => `${millis / 1000} s`

/** `rank 3`, `ranks 0, 2`; of many, the first. */
const ranksInWords = (ranks: ReadonlyArray<Rank>): string => {
  const more = ranks.length > 8 ? ` and ${ranks.length - 8} more` : ""
  return `${ranks.length === 1 ? "rank" : "ranks"} ${ranks.slice(0, 8).join(", ")}${more}`
}

/**
 * Runs the job on `size` new processes of this machine; each rank's outcome, by rank. What ranks log is logged here.
 * `onProgress` hears of ranks while they work; `file` is their program.
 */
export const runProcesses = Effect.fn("runProcesses")(function* (
  spec: AnyJobSpec,
  size: number,
  onProgress: (progress: RankProgress) => Effect.Effect<void>,
  file: string = workerFile
): Effect.fn.Return<ReadonlyArray<RankOutcome>, never, Scope.Scope> {
  const { out, deadlineMillis } = spec
  if (out !== null) {
    yield* Effect.addFinalizer(() =>
      Effect.ignore(Effect.tryPromise(() => rm(out.temporary, { recursive: true, force: true })))
    )
  }
  const events = yield* Queue.unbounded<Event>()
  const ranks = Array.from({ length: size }, (_, rank) => rank)
  const environment = spec.device === undefined ? {} : { environment: deviceEnvironment }
  const processes = yield* startRanks({ file, events, decode, ...environment }, ranks)
  const outcomes = new Map<Rank, RankOutcome>()
  const alive = new Set(ranks)
  const starting = new Set(ranks)
  const joined = new Set<Rank>()
  const send = (rank: Rank, port: number): void => {
    const { child } = processes[rank]!
    // A rank that just ended reports so by its exit.
    if (child.connected) child.send(encode({ _tag: "Job", spec, rank, size, port }), () => undefined)
  }
  /** Ends processes; `why` is the outcome of those that have none. */
  const kill = (some: Iterable<Rank>, why: (rank: Rank) => RankOutcome): void => {
    for (const rank of some) {
      if (!outcomes.has(rank)) outcomes.set(rank, why(rank))
      processes[rank]!.child.kill("SIGKILL")
    }
  }
  /** Ranks that the failures of others name. */
  const blamed = (): ReadonlySet<Rank> =>
    new Set([...outcomes.values()].flatMap((outcome) => (outcome._tag === "Failed" ? outcome.failure.ranks : [])))
  const isFailed = (): boolean => [...outcomes.values()].some((outcome) => outcome._tag === "Failed")

  /** False until the ranks were asked to connect; before that none would notice that another has exited. */
  let isMeeting = false
  /** Milliseconds in which this process ran: a job that was stopped as a whole is nobody's fault. */
  let now = 0
  const tickMillis = tickMillisOf(deadlineMillis)
  yield* Effect.forkScoped(
    ticking(tickMillis, (counted) => {
      now = counted
    })
  )
  /** When the wait began that people hear of next, and when they do. Once ranks meet, they say for whom they wait. */
  let waiting = { since: 0, next: 3000 }
  const awaited = (): string | undefined => {
    if (isMeeting || outcomes.size > 0) return undefined
    return starting.size > 0 ? `${ranksInWords([...starting])} to start` : "rank 0 to open a port"
  }
  /** What is not waited for longer, and what happens then. None while the ranks watch each other. */
  let limit: { readonly at: number; readonly expire: () => void } | undefined
  const giveUpAfter = (millis: number, expire: () => void): void => {
    const at = now + millis
    if (limit === undefined || at < limit.at) limit = { at, expire }
  }
  const endAll = (): void => {
    const named = blamed()
    const failed = isFailed()
    kill(alive, (rank) =>
      !failed || named.has(rank)
        ? hung(rank, failed ? "did not react" : "did not end although all others had")
        : { _tag: "Stopped", rank }
    )
  }
  const startLimit = deadlineMillis + startMillis * size
  giveUpAfter(startLimit, () => {
    kill(starting, (rank) => hung(rank, `did not start within ${formatSeconds(startLimit)}`))
    kill(alive, (rank) => ({ _tag: "Stopped", rank }))
  })

  while (alive.size > 0) {
    const patience = limit === undefined ? Duration.infinity : Duration.millis(limit.at > now ? tickMillis : 0)
    const event = yield* Effect.timeoutOption(Queue.take(events), patience)
    if (Option.isNone(event)) {
      const what = awaited()
      if (what !== undefined && now >= waiting.next) {
        const waited = now - waiting.since
        waiting = { ...waiting, next: waiting.since + 3 * waited }
        const until = limit === undefined ? "" : untilWords(limit.at, now)
        yield* logOfRank(undefined, `Waited ${inSeconds(waited)} for ${what}${until}.`)
      }
      const expired = limit
      if (expired === undefined || expired.at > now) continue
      limit = undefined
      expired.expire()
      continue
    }
    const { rank } = event.value
    if (event.value._tag === "Message") {
      const { message } = event.value
      if (message._tag === "Started" && starting.delete(rank) && starting.size === 0 && outcomes.size === 0) {
        limit = undefined
        waiting = { since: now, next: now + 3000 }
        giveUpAfter(startLimit, () => {
          kill([0], () => hung(0, `did not open a port within ${formatSeconds(startLimit)}`))
          kill(alive, (other) => ({ _tag: "Stopped", rank: other }))
        })
        send(0, 0)
      }
      if (message._tag === "Listening" && outcomes.size === 0) {
        limit = undefined
        isMeeting = true
        for (const other of ranks.slice(1)) send(other, message.port)
      }
      if (message._tag === "Joined") joined.add(rank)
      if (message._tag === "Progress") yield* onProgress({ rank, ...message })
      if (message._tag === "Log") yield* logOfRank(rank, message.text, message.level)
      if (message._tag === "Finished") outcomes.set(rank, { _tag: "Finished", rank, report: message.report })
      if (message._tag === "Failed") outcomes.set(rank, { _tag: "Failed", rank, failure: message.failure })
      // The others have the same to say within the deadline, or do not run any more. Without a rank that never met them
      // they only wait for each other.
      if (outcomes.has(rank)) giveUpAfter((joined.has(rank) ? deadlineMillis : 0) + graceMillis, endAll)
      continue
    }
    alive.delete(rank)
    starting.delete(rank)
    if (!outcomes.has(rank)) {
      outcomes.set(rank, endedWithoutResult(rank, event.value, processes[rank]!.output()))
      // The others notice at once where they wait for it; what else they do is in vain.
      giveUpAfter(isMeeting ? graceMillis : 0, endAll)
    }
    const named = blamed()
    if (alive.size > 0 && [...alive].every((other) => named.has(other) && !outcomes.has(other))) endAll()
  }
  return ranks.map((rank) => outcomes.get(rank)!)
})
