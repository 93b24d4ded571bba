// SPDX-License-Identifier: Apache-2.0
/**
 * The child's ends of edges. An edge stays open when what was asked for has come, and is used for whatever is taken from that
 * member next; so where a tree stays the same from version to version, nothing is opened. A failure closes the edge on which
 * it happened, and no other.
 *
 * With each chunk goes the digest that the source took of it. Whoever receives a chunk proves it before anybody gets it from
 * them, so that what is broken on the way is found by the first who receives it. A chunk is proven while the next one comes.
 */
import { randomUUID } from "node:crypto"
import { awaitEntries, type KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import type { Digest } from "@tensorferry/core/base/Digest"
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { FleetError, fleetError } from "../FleetError.ts"
import { type EdgeOptions, failedWith, type Line, openLine } from "./EdgeLine.ts"
import { Answer, Ask, chunkAt, chunkCount, Door, type EdgeRequest, Knock, postOf, textOf } from "./EdgeMessages.ts"
import type { BundleBytes } from "./Pieces.ts"

const [asks, answers] = [postOf(Ask), postOf(Answer)]
const doorText = textOf(Door)
const knockText = textOf(Knock)

/** Versions for which an edge stays open without being used. */
const idleVersions = 2

interface OpenEdge {
  readonly line: Line
  readonly scope: Scope.Closeable
  readonly chunkBytes: number
  /** Number of its last request. */
  ask: number
  /** Versions begun since it was used. */
  idle: number
}

/** What is taken, and where it goes. */
export interface TakeInput {
  /** Id of the member that gives it. */
  readonly parent: string
  readonly request: EdgeRequest
  readonly piecesOf: BundleBytes
  /** Hears of each chunk that is proven, in order. */
  readonly onChunk: (chunk: number, digest: Digest) => Effect.Effect<void>
}

const notProven = (parent: string, chunk: number, found: Digest, stated: Digest): FleetError =>
  fleetError("NotProven", [], {
    detail: `Chunk ${chunk} from member ${parent} has digest ${found}, not ${stated}.`,
    remedy: "It is taken from another member; see whether that one's memory or network is at fault.",
    scope: "peer",
    isRetryable: true
  })

/** Ends when a member's report is gone, as it is with its process, and does not come back as it does after the store was away. */
const untilUnreported = (store: KeyValueStoreShape, key: string, patience: Duration.Duration) =>
  store.watch(key).pipe(
    Stream.filter((entries) => entries.size === 0),
    Stream.mapEffect(() => Effect.delay(store.list(key), patience)),
    Stream.filter((entries) => entries.size === 0),
    Stream.runHead
  )

/** What was asked for on an edge; whether the parent ended it, and the edge can be used again. */
interface Taken {
  readonly refusal: string | undefined
}

const takeOver = (edge: OpenEdge, { parent, request, piecesOf, onChunk }: TakeInput, { deadline }: EdgeOptions) =>
  Effect.gen(function* () {
    const { line } = edge
    const ask = ++edge.ask
    yield* line.tell(asks.encode({ ask, request }))
    const nextAnswer = Effect.timeoutOrElse(line.heard, {
      duration: deadline,
      orElse: () => Effect.fail(`it was not heard from for ${Duration.format(deadline)}`)
    })
    // Ends when all chunks up to one are proven, and when all up to the one before it are.
    let [proven, provenBefore]: [Effect.Effect<void, unknown>, Effect.Effect<void, unknown>] = [
      Effect.void,
      Effect.void
    ]
    for (let chunk = request.from; chunk < chunkCount(request); ) {
      const answer = answers.decode(yield* nextAnswer)
      if (answer?.ask !== ask || answer._tag === "Wait") continue
      if (answer._tag === "No") {
        yield* proven
        return { refusal: answer.reason } satisfies Taken
      }
      const [at, stated] = [chunk++, answer.digest]
      const [start, end] = chunkAt(request, at)
      const arrivals: Array<Effect.Effect<void, unknown>> = []
      for (let byte = start; byte < end; byte += line.windowBytes)
        arrivals.push(yield* line.receive(piecesOf(request.bundle, byte, Math.min(end, byte + line.windowBytes))))
      yield* provenBefore
      const before = proven
      const proving = Effect.gen(function* () {
        yield* Effect.all(arrivals, { discard: true })
        const found = yield* line.digest(piecesOf(request.bundle, start, end))
        yield* before
        if (stated !== found) return yield* notProven(parent, at, found, stated)
        yield* onChunk(at, found)
      })
      provenBefore = proven
      proven = Fiber.join(yield* Effect.forkScoped(proving, { startImmediately: true }))
    }
    yield* proven
    return { refusal: undefined } satisfies Taken
  }).pipe(Effect.scoped, Effect.raceFirst(edge.line.untilGone))

/** The edges of one member, until the scope closes. */
export const makeEdgePool = Effect.fnUntraced(function* (
  store: KeyValueStoreShape,
  root: string,
  self: { readonly id: string; readonly rank: Rank },
  options: EdgeOptions
) {
  const owner = yield* Effect.scope
  const idle = new Map<string, Array<OpenEdge>>()
  let opened = 0

  const forget = (parent: string, edge: OpenEdge): void => {
    const left = (idle.get(parent) ?? []).filter((other) => other !== edge)
    if (left.length === 0) idle.delete(parent)
    else idle.set(parent, left)
  }
  // Nobody waits for the other end of an edge that is not needed.
  const close = (parent: string, edge: OpenEdge): Effect.Effect<void> =>
    Effect.suspend(() => {
      forget(parent, edge)
      return Scope.close(edge.scope, Exit.fail("closed"))
    })

  const open = (parent: string, chunkBytes: number): Effect.Effect<OpenEdge, unknown> =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(owner)
      const id = randomUUID()
      const [ask, door] = [`${root}ask/${parent}/${id}`, `${root}door/${id}`]
      const member = `${root}member/${parent}`
      const opening = Effect.gen(function* () {
        yield* store.put(ask, knockText.encode({ child: self.id, rank: self.rank, chunkBytes }), { isEphemeral: true })
        const text = yield* awaitEntries(
          store,
          door,
          (entries) => Effect.succeed(entries.get(door)),
          options.deadline,
          () => "it did not open an edge"
        )
        const { host, port, windowBytes } = yield* Effect.fromResult(doorText.decode(text))
        return yield* openLine({ rank: 1, peer: parent, host, port, windowBytes }, options)
      })
      const patience = Duration.millis(Duration.toMillis(options.deadline) / 2)
      const unreported = untilUnreported(store, member, patience)
      const line = yield* Scope.provide(opening, scope).pipe(
        Effect.raceFirst(Effect.andThen(unreported, Effect.fail("its process is gone"))),
        Effect.ensuring(Effect.ignore(store.remove(ask))),
        Effect.onError(() => Scope.close(scope, Exit.fail("not opened")))
      )
      opened += 1
      const edge: OpenEdge = { line, scope, chunkBytes, ask: 0, idle: 0 }
      yield* Effect.forkIn(Effect.andThen(unreported, line.lose("its process is gone")), scope)
      // An edge that nobody uses closes with its other end.
      yield* Effect.forkIn(
        Effect.catch(line.untilGone, () => close(parent, edge)),
        owner
      )
      return edge
    })

  /** An idle edge, which is its caller's from then on. */
  const reuse = (parent: string, chunkBytes: number): OpenEdge | undefined => {
    const edge = idle.get(parent)?.find((other) => other.chunkBytes === chunkBytes)
    if (edge !== undefined) forget(parent, edge)
    return edge
  }

  return {
    /** How many edges were opened, ever. */
    opened: (): number => opened,
    /** Closes edges that the last versions had no use for. Called before a version is taken. */
    age: Effect.suspend(() => {
      const old: Array<Effect.Effect<void>> = []
      for (const [parent, edges] of idle) {
        for (const edge of edges) {
          edge.idle += 1
          if (edge.idle > idleVersions) old.push(close(parent, edge))
        }
      }
      return Effect.all(old, { discard: true })
    }),
    /** Takes what is asked for, chunk by chunk. Fails with PeerFailed or NotProven. */
    take: (input: TakeInput): Effect.Effect<void, FleetError> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function* () {
          const { parent, request } = input
          // Whoever was removed is not waited for: it may never open an edge, or say anything on it.
          const removed = Effect.andThen(options.untilRemoved?.(parent) ?? Effect.never, Effect.fail("it was removed"))
          const unlessRemoved = <A, E>(effect: Effect.Effect<A, E>) => restore(Effect.raceFirst(effect, removed))
          const edge = reuse(parent, request.chunkBytes) ?? (yield* unlessRemoved(open(parent, request.chunkBytes)))
          const taken = yield* Effect.onError(unlessRemoved(takeOver(edge, input, options)), () => close(parent, edge))
          edge.idle = 0
          idle.set(parent, [...(idle.get(parent) ?? []), edge])
          return taken
        })
      ).pipe(
        Effect.flatMap(({ refusal }) => (refusal === undefined ? Effect.void : Effect.fail(refusal))),
        Effect.mapError((cause) =>
          cause instanceof FleetError ? cause : failedWith(input.parent, "did not give it")(cause)
        )
      )
  }
})

/** The edges of one member. */
export type EdgePool = Effect.Success<ReturnType<typeof makeEdgePool>>
