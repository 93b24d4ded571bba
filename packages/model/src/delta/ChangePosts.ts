// SPDX-License-Identifier: Apache-2.0
/**
 * What two ranks that exchange changes state to each other before they move them, by posts: a receiver what it holds, a sender
 * how much changed. Nobody else hears of it, so its cost does not grow with the group.
 *
 * Each rank counts its updates. A statement is of one update; those of earlier ones are dropped, those of the next one wait. A
 * long statement goes as pieces of a post each. A rank that cannot go on says why, and everybody who waits for it fails with
 * that. A wait ends when nothing was heard from those it waits for within the group's deadline; a rank at long work says that
 * it is busy.
 *
 * Invariant: what a peer sends is refused unless it is a statement in every byte, and takes no more memory than one that the
 * plan allows.
 */

import { Natural32 } from "@tensorferry/core/base/Numbers"
import { jsonPayloads } from "@tensorferry/core/group/Exchange"
import { ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { withinRunningTime } from "@tensorferry/core/service/RunningTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"

/** Who states something: the receiver of changes what it holds, or their sender how much changed. */
export type StatementKind = "holds" | "changed"

/** What is stated beside numbers. */
const Head = Schema.Struct({
  /** The version that the update leads to. */
  version: Schema.String,
  /** Of `holds`: the version that the destination has, and the digest of all changes that led there. */
  holds: Schema.NullOr(Schema.String),
  proof: Schema.NullOr(Schema.String),
  /** The number of words in a row of numbers. */
  words: Natural32
})

/** A statement of a rank to another one. */
export interface Statement {
  readonly head: typeof Head.Type
  /** Rows of `head.words` numbers each. */
  readonly rows: Uint32Array
  /** What was stated, byte by byte: the same at both ends. */
  readonly bytes: Uint8Array
}

const kinds = ["holds", "changed", "failed", "busy"] as const
type PostKind = (typeof kinds)[number]

/** Kind, number of the update, piece, number of pieces. */
const postHead = 16
const postBytes = 4096
const pieceBytes = postBytes - postHead
/** Characters of a text of an error that is passed on. */
const mostText = 1000

const heads = jsonPayloads(Head)
const failures = jsonPayloads(ReshardError)

/** A statement as bytes: the length of its head, the head as JSON, and the rows. */
export const encodeStatement = (head: typeof Head.Type, rows: ReadonlyArray<number>): Uint8Array => {
  const text = heads.encode(head)
  const bytes = new Uint8Array(4 + text.length + 4 * rows.length)
  const view = new DataView(bytes.buffer)
  view.setUint32(0, text.length, true)
  bytes.set(text, 4)
  for (const [at, value] of rows.entries()) view.setUint32(4 + text.length + 4 * at, value, true)
  return bytes
}

/** The statement of bytes, or undefined where they are none. */
export const decodeStatement = (bytes: Uint8Array): Statement | undefined => {
  if (bytes.length < 4) return undefined
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const start = 4 + view.getUint32(0, true)
  if (start > bytes.length || (bytes.length - start) % 4 !== 0) return undefined
  const decoded = heads.decodeAll([bytes.subarray(4, start)])
  if (Result.isFailure(decoded)) return undefined
  const head = decoded.success[0]!
  const count = (bytes.length - start) / 4
  if (head.words === 0 ? count > 0 : count % head.words !== 0) return undefined
  return { head, rows: Uint32Array.from({ length: count }, (_, at) => view.getUint32(start + 4 * at, true)), bytes }
}

/** A failure as a post carries it; long texts are cut. */
const encodeFailure = (error: ReshardError): Uint8Array => {
  const { reason } = error
  const cut = (text: string) => (text.length > mostText ? `${text.slice(0, mostText)}…` : text)
  return failures.encode(
    reshardError(reason._tag, {
      ...reason,
      detail: cut(reason.detail),
      remedy: cut(reason.remedy),
      ...(reason.paramName === undefined ? {} : { paramName: cut(reason.paramName) })
    })
  )
}

/** A statement of which pieces are still missing. */
interface Incomplete {
  readonly pieces: Array<Uint8Array | undefined>
  total?: number
  missing: number
}

/** What this rank heard of one update. */
interface Heard {
  readonly partial: Map<string, Incomplete>
  readonly whole: Map<string, Statement>
  readonly failed: Map<number, ReshardError>
}

/** Statements of the updates of one rank. */
export interface ChangePosts {
  /** Begins the next update. */
  readonly begin: Effect.Effect<void>
  readonly state: (kind: StatementKind, to: number, statement: Uint8Array) => Effect.Effect<void>
  /** Ends with what these ranks stated; fails with the first of them that cannot go on, is gone, or is not heard from. */
  readonly hear: (
    kind: StatementKind,
    from: ReadonlyArray<number>
  ) => Effect.Effect<ReadonlyMap<number, Statement>, ReshardError>
  /** States that the update fails here. */
  readonly fail: (to: ReadonlyArray<number>, error: ReshardError) => Effect.Effect<void>
  /** Carries out long work, and lets these ranks know that it goes on. */
  readonly busy: <A, E, R>(to: ReadonlyArray<number>, work: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
}

/** Listens in a lane of its own; `mostBytes` is the longest statement that a peer may make. */
export const makeChangePosts = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  mostBytes: number
): Effect.fn.Return<ChangePosts, never, Scope.Scope> {
  const lane = yield* group.lane("delta updates")
  const { rank } = lane
  const mostPieces = Math.ceil(mostBytes / pieceBytes) + 1
  let update = 0
  /** The update under way, and the one after. */
  let [now, next] = [emptyHeard(), emptyHeard()]
  const gone = new Set<number>()
  /** Posts of each rank so far. */
  const counts = new Map<number, number>()
  let changed = Deferred.makeUnsafe<void>()

  const note = () => {
    const before = changed
    changed = Deferred.makeUnsafe()
    Deferred.doneUnsafe(before, Effect.void)
  }

  const malformed = (from: number) =>
    reshardError("ExchangeFailed", {
      rank,
      peer: from,
      detail: `Rank ${from} states something that cannot be read.`,
      remedy: "Run the same version on all ranks."
    })

  /** All pieces of something are there. */
  const complete = (from: number, kind: PostKind, heard: Heard, bytes: Uint8Array) => {
    if (kind === "failed") {
      const decoded = failures.decodeAll([bytes])
      heard.failed.set(from, Result.isSuccess(decoded) ? decoded.success[0]! : malformed(from))
      return
    }
    const statement = decodeStatement(bytes)
    if (statement === undefined) heard.failed.set(from, malformed(from))
    else heard.whole.set(`${from} ${kind}`, statement)
  }

  const take = (from: number, kind: PostKind, heard: Heard, at: number, total: number, piece: Uint8Array) => {
    if (kind === "busy") return
    const key = `${from} ${kind}`
    const partial: Incomplete = heard.partial.get(key) ?? { pieces: [] as (Uint8Array | undefined)[], missing: total }
    const isFit = total > 0 && total <= mostPieces && at < total && piece.length <= pieceBytes
    const isNew = partial.pieces[at] === undefined && !heard.whole.has(key)
    if (!isFit || !isNew || (partial.total ?? total) !== total) {
      heard.failed.set(from, malformed(from))
      return
    }
    partial.total = total
    heard.partial.set(key, partial)
    partial.pieces[at] = piece.slice()
    partial.missing -= 1
    if (partial.missing > 0) return
    heard.partial.delete(key)
    complete(from, kind, heard, Buffer.concat(partial.pieces as Array<Uint8Array>))
  }

  const receive = (from: number, payload: Uint8Array) => {
    counts.set(from, (counts.get(from) ?? 0) + 1)
    if (payload.length >= postHead) {
      const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength)
      const [kind, of, at, total] = [0, 4, 8, 12].map((offset) => view.getUint32(offset, true))
      const heard = of === update ? now : of === update + 1 ? next : undefined
      const name = kinds[kind!]
      if (heard !== undefined && name !== undefined) take(from, name, heard, at!, total!, payload.subarray(postHead))
    }
    note()
  }

  yield* lane.listen({
    post: receive,
    gone: (lost) => {
      gone.add(lost)
      note()
    }
  })

  const post = (kind: PostKind, to: ReadonlyArray<number>, payload: Uint8Array) => {
    const total = Math.max(1, Math.ceil(payload.length / pieceBytes))
    return Effect.forEach(
      Array.from({ length: total }, (_, at) => at),
      (at) => {
        const piece = payload.subarray(at * pieceBytes, (at + 1) * pieceBytes)
        const bytes = new Uint8Array(postHead + piece.length)
        const view = new DataView(bytes.buffer)
        for (const [word, value] of [kinds.indexOf(kind), update, at, total].entries()) {
          view.setUint32(4 * word, value, true)
        }
        bytes.set(piece, postHead)
        // A post to oneself is passed over.
        if (to.includes(rank)) receive(rank, bytes)
        return lane.post(to, bytes)
      },
      { discard: true }
    )
  }

  const unheard = (missing: ReadonlyArray<number>) =>
    reshardError("ExchangeFailed", {
      rank,
      peer: missing[0]!,
      isRetryable: true,
      detail: `Nothing was heard from rank ${missing.join(", ")} within ${Duration.format(lane.deadline)}.`,
      remedy: "See what these ranks do: every rank of the plan calls update for the same version."
    })

  /** Where the rank that all connections lead to is gone, so are the others: all are named, the first to go first. */
  const lost = (peer: number) =>
    reshardError("ExchangeFailed", {
      rank,
      peer,
      scope: "peer",
      detail:
        gone.size === 1 ? `Rank ${peer} is gone.` : `Gone are ${[...gone].map((one) => `rank ${one}`).join(", ")}.`,
      remedy: "See what the first of them printed, then start again."
    })

  const hear = (
    kind: StatementKind,
    from: ReadonlyArray<number>
  ): Effect.Effect<ReadonlyMap<number, Statement>, ReshardError> =>
    Effect.suspend(() => {
      const missing = from.filter((peer) => !now.whole.has(`${peer} ${kind}`))
      const failed = from.find((peer) => now.failed.has(peer))
      if (failed !== undefined) return now.failed.get(failed)!
      if (missing.length === 0) {
        return Effect.succeed(new Map(from.map((peer) => [peer, now.whole.get(`${peer} ${kind}`)!] as const)))
      }
      const dead = missing.find((peer) => gone.has(peer))
      if (dead !== undefined) return lost(dead)
      const heardOf = () => missing.reduce((sum, peer) => sum + (counts.get(peer) ?? 0), 0)
      const before = heardOf()
      /** Posts of others do not count as progress of the missing ones. */
      const progress: Effect.Effect<void> = Effect.suspend(() =>
        heardOf() !== before || missing.some((peer) => gone.has(peer) || now.failed.has(peer))
          ? Effect.void
          : Effect.andThen(Deferred.await(changed), progress)
      )
      return Effect.flatMap(withinRunningTime(progress, lane.deadline), (heard) =>
        Option.isSome(heard) ? hear(kind, from) : Effect.fail(unheard(missing))
      )
    })

  return {
    begin: Effect.sync(() => {
      update += 1
      ;[now, next] = [next, emptyHeard()]
    }),
    state: (kind, to, statement) => post(kind, [to], statement),
    hear,
    fail: (to, error) => (to.length === 0 ? Effect.void : post("failed", to, encodeFailure(error))),
    busy: (to, work) => {
      const again = Effect.delay(
        post("busy", to, new Uint8Array()),
        Duration.millis(Duration.toMillis(lane.deadline) / 4)
      )
      return to.length === 0 ? work : Effect.raceFirst(work, Effect.forever(again))
    }
  }
})

const emptyHeard = (): Heard => ({ partial: new Map(), whole: new Map(), failed: new Map() })
