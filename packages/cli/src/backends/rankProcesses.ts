// SPDX-License-Identifier: Apache-2.0
/**
 * Starts one process per rank for a piece of work on a backend, lets them connect, and passes on what they report.
 *
 * Invariants: when the Effect ends, in whatever way, every process that it started is gone. It ends: ranks watch each other
 * by the deadline of their group, and processes that report nothing for too long are killed. A process that dies takes
 * nothing with it but itself: how it ended is a value.
 */
import { fileURLToPath } from "node:url"
import { describeCrash } from "@tensorferry/core/base/UnknownCause"
import { withinRunningTime } from "@tensorferry/core/service/RunningTime"
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import { RankLog } from "../job/parentChannel.ts"
import { logOfRank, type RankEvent, startRanks } from "../job/RankProcess.ts"

/** What a rank gets. The work itself is known to those who start it and to the program that does it. */
export const ToRank = Schema.Struct({
  rank: Schema.Int,
  size: Schema.Int,
  port: Schema.Int,
  deadlineMillis: Schema.Int,
  work: Schema.Json
})

export const FromRank = Schema.TaggedUnion({
  Listening: { port: Schema.Int },
  /** The ranks have met. */
  Joined: {},
  Told: { news: Schema.Json },
  Log: RankLog,
  Failed: { message: Schema.String, reason: Schema.String }
})

const encode = Schema.encodeSync(ToRank)
const decodeKnown = Schema.decodeUnknownOption(FromRank)
const decode = (message: unknown) => Option.getOrUndefined(decodeKnown(message))

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
  /** Processes that report nothing for so long are killed. */
  readonly quietMillis: number
  readonly onNews: (rank: number, news: Schema.Json) => Effect.Effect<void>
}

/** Why a rank ended, where not well. */
export interface RankEnd {
  readonly rank: number
  readonly cause: string | undefined
  /** How near it is to what went wrong: a process that ended by itself, one that says why, one that only heard of another. */
  readonly kind: "crashed" | "failed" | "heard"
}

const order = ["crashed", "failed", "heard"]

/** Those that ended badly, the one that took others along first. */
export const badEnds = (
  ends: ReadonlyArray<RankEnd>
): ReadonlyArray<RankEnd & { readonly cause: string; readonly text: string }> =>
  ends
    .flatMap((end) => {
      const { rank, cause, kind } = end
      if (cause === undefined) return []
      return [{ ...end, cause, text: kind === "crashed" ? `rank ${rank} crashed: ${cause}` : `rank ${rank}: ${cause}` }]
    })
    .sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind))

/** What a rank says of itself while another is the reason. */
const heardOf = new Set(["PeerGone", "DeadlineExceeded", "CollectiveMismatch"])

/** The stack's own words where there is a stack, else all that was printed. */
const lastWords = (output: string): string => (output === "" ? "" : `: ${describeCrash(output) ?? output}`)

/** Runs the work to its end on every rank; how each ended, by rank. */
export const runRanks = Effect.fn("runRanks")(function* (given: RankWork): Effect.fn.Return<ReadonlyArray<RankEnd>> {
  const { size, deadlineMillis, quietMillis, work, onNews } = given
  const events = yield* Queue.unbounded<RankEvent<typeof FromRank.Type>>()
  const ranks = Array.from({ length: size }, (_, rank) => rank)
  // Backends choose the device of LOCAL_RANK.
  const environment = (rank: number) => ({ ...process.env, LOCAL_RANK: String(rank) })
  const follow = Effect.gen(function* () {
    const processes = yield* startRanks({ file: given.file, events, decode, environment }, ranks)
    const causes = new Map<number, Pick<RankEnd, "cause" | "kind">>()
    const note = (rank: number, kind: RankEnd["kind"], cause: string): void => {
      causes.set(rank, { cause, kind })
    }
    const alive = new Set(ranks)
    const joined = new Set<number>()
    const send = (rank: number, port: number): void => {
      const { child } = processes[rank]!
      if (child.connected) child.send(encode({ rank, size, port, deadlineMillis, work }), () => undefined)
    }
    send(0, 0)
    const met = yield* Deferred.make<void>()
    yield* Effect.forkScoped(
      sayWaiting(
        Deferred.await(met),
        (millis) => `Waited ${inSeconds(millis)} for rank 0 to start${untilWords(quietMillis, millis)}.`
      )
    )
    while (alive.size > 0) {
      const next = yield* withinRunningTime(Queue.take(events), quietMillis)
      if (Option.isNone(next)) {
        for (const rank of alive) {
          note(rank, "failed", `the process reported nothing for ${quietMillis / 1000} s and was killed`)
          processes[rank]!.child.kill("SIGKILL")
        }
        continue
      }
      const event = next.value
      if (event._tag === "Message") {
        const { rank, message } = event
        // From now on ranks say themselves for whom they wait.
        yield* Deferred.succeed(met, undefined)
        if (message._tag === "Listening") for (const other of ranks.slice(1)) send(other, message.port)
        else if (message._tag === "Failed")
          note(rank, heardOf.has(message.reason) ? "heard" : "failed", message.message)
        else if (message._tag === "Joined") joined.add(rank)
        else if (message._tag === "Log") yield* logOfRank(rank, message.text, message.level)
        else yield* onNews(rank, message.news)
        continue
      }
      const { rank, code, signal } = event
      alive.delete(rank)
      if (code !== 0 && !causes.has(rank)) {
        const how = signal === null ? `ended with exit code ${code}` : `was ended by ${signal}`
        note(rank, "crashed", `the process ${how}${lastWords(processes[rank]!.output())}`)
      }
      if (joined.has(rank)) continue
      // Without it the ranks never meet; the others would wait for it in vain.
      for (const other of alive) {
        if (!causes.has(other))
          note(other, "heard", `the process was ended, because rank ${rank} never connected to the others`)
        processes[other]!.child.kill("SIGTERM")
      }
    }
    return ranks.map((rank): RankEnd => ({ rank, cause: undefined, kind: "failed", ...causes.get(rank) }))
  })
  return yield* Effect.scoped(follow)
})
