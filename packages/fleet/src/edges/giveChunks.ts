// SPDX-License-Identifier: Apache-2.0
/** The parent's end of an edge: gives a child what it asks for, chunk by chunk, until the child is gone. */
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import type { Digest } from "@tensorferry/core/base/Digest"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { FleetError } from "../FleetError.ts"
import { type EdgeOptions, failedWith, type Line, openLine } from "./EdgeLine.ts"
import {
  Answer,
  Ask,
  chunkAt,
  chunkCount,
  Door,
  type EdgeRequest,
  evenPart,
  Knock,
  postOf,
  textOf
} from "./EdgeMessages.ts"
import type { BundleBytes } from "./Pieces.ts"
import type { SendLimit } from "./SendLimit.ts"

/** What a parent needs to know to give chunks of a version. */
export interface Giver {
  readonly piecesOf: BundleBytes
  /** Ends when the chunk is here and proven, with its digest. */
  readonly awaitChunk: (request: EdgeRequest, chunk: number) => Effect.Effect<Digest, FleetError, TensorEngine>
}

/** Who gives a version: ends when this is known, or it is known that nobody does here. */
export type GiverOf = (request: Pick<EdgeRequest, "content" | "serial">) => Effect.Effect<Giver | undefined>

const [asks, answers] = [postOf(Ask), postOf(Answer)]
const doorText = textOf(Door)
const knockText = textOf(Knock)

/** More at once gains nothing: a run of a known update costs less than a hundredth of moving so much. */
const mostWindowBytes = 2 ** 23

const answer = (line: Line, message: Answer): Effect.Effect<void> => line.tell(answers.encode(message))

/** More urgent than all that wait: what is left of a chunk whose child waits for it. */
const begun = -1

const giveRequest = (
  line: Line,
  { ask, request }: Ask,
  giverOf: GiverOf,
  limit: SendLimit | undefined,
  options: EdgeOptions
) => {
  const mayGo = (urgency: number) => limit?.take(line.windowBytes, urgency) ?? Effect.void
  const urgency = request.isJoin === ((options.first ?? "updates") === "joins") ? 0 : 1
  const refuse = (reason: string) => answer(line, { _tag: "No", ask, reason })
  // A child hears of its parent often enough to tell one that waits from one that is stuck.
  const waiting = Effect.forever(
    Effect.delay(answer(line, { _tag: "Wait", ask }), Duration.millis(Duration.toMillis(options.deadline) / 4))
  )
  // A parent that hears of nothing new is soon no use to anybody.
  const known = Effect.timeoutOrElse(giverOf(request), {
    duration: Duration.millis(Duration.toMillis(options.deadline) / 2),
    orElse: () => Effect.succeed(undefined)
  })
  const giving = Effect.gen(function* () {
    const giver = yield* known
    if (giver === undefined) return yield* refuse("it does not have this version")
    for (let chunk = request.from; chunk < chunkCount(request); chunk++) {
      const proven = yield* Effect.result(giver.awaitChunk(request, chunk))
      if (Result.isFailure(proven)) return yield* refuse(proven.failure.message)
      yield* mayGo(urgency)
      yield* answer(line, { _tag: "Go", ask, chunk, digest: proven.success })
      const [start, end] = chunkAt(request, chunk)
      for (let at = start; at < end; at += line.windowBytes) {
        if (at > start) yield* mayGo(begun)
        void (yield* line.send(giver.piecesOf(request.bundle, at, Math.min(end, at + line.windowBytes))))
      }
    }
    yield* line.idle
  })
  return giving.pipe(Effect.raceFirst(waiting), Effect.raceFirst(line.untilGone))
}

/** Opens an edge for a child that has knocked, and gives what it asks for. Ends when the child is gone. */
export const give = (
  store: KeyValueStoreShape,
  door: string,
  { child, rank, chunkBytes }: Knock,
  giverOf: GiverOf,
  options: EdgeOptions
): Effect.Effect<void, FleetError, TensorEngine> =>
  Effect.gen(function* () {
    const host = options.host ?? "127.0.0.1"
    const limit = options.isNear?.(rank) === true ? undefined : options.limit
    const windowBytes = evenPart(chunkBytes, Math.min(mostWindowBytes, limit?.mostAtOnce ?? mostWindowBytes))
    const onListening = (port: number) =>
      Effect.ignore(store.put(door, doorText.encode({ host, port, windowBytes }), { isEphemeral: true }))
    const line = yield* openLine({ rank: 0, peer: child, host, port: 0, windowBytes, onListening }, options).pipe(
      Effect.ensuring(Effect.ignore(store.remove(door)))
    )
    for (;;) {
      const asked = asks.decode(yield* line.heard)
      if (asked !== undefined) yield* giveRequest(line, asked, giverOf, limit, options)
    }
  }).pipe(Effect.scoped, Effect.mapError(failedWith(child, "did not take what it asked for")))

/** The knocks that stand under a member's keys, by id. */
export const knocksOf = (root: string, member: string, entries: ReadonlyMap<string, string>) => {
  const prefix = `${root}ask/${member}/`
  return [...entries].flatMap(([key, text]) => {
    const knock = knockText.decode(text)
    const id = key.slice(prefix.length)
    return Result.isSuccess(knock) ? [{ id, door: `${root}door/${id}`, knock: knock.success }] : []
  })
}
