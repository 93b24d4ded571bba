// SPDX-License-Identifier: Apache-2.0
/** Edges between two members of one process, over the real copy driver: opened once, agreed on once, proven chunk by chunk. */
import { assert, describe, it } from "@effect/vitest"
import {
  CopyDriver,
  HostMemory as HostMemoryLayers,
  TensorEngine as TensorEngineLayers
} from "@tensorferry/backend-torch-copy"
import { KeyValueStoreMemory } from "@tensorferry/bus"
import { KeyValueStore } from "@tensorferry/bus/store/KeyValueStore"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { cpu } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { ChunkDigests } from "../../src/edges/ChunkDigests.ts"
import type { EdgeOptions } from "../../src/edges/EdgeLine.ts"
import { chunkCount, type EdgeRequest } from "../../src/edges/EdgeMessages.ts"
import { makeEdgePool } from "../../src/edges/EdgePool.ts"
import { type Giver, give, knocksOf } from "../../src/edges/giveChunks.ts"
import { wholeBundle, wholeBytes } from "../../src/edges/Pieces.ts"
import { makeSendLimit } from "../../src/edges/SendLimit.ts"

const length = 100_003
const request: EdgeRequest = {
  content: "one",
  bundle: wholeBundle,
  offset: 0,
  bytes: length,
  chunkBytes: Math.ceil(length / 7),
  from: 0,
  isJoin: false
}

/** A transport that counts the collectives of its group. */
const countingTransport = (onCollective: () => void): EdgeOptions["transport"] => {
  const counted = (group: ProcessGroupShape): ProcessGroupShape => {
    const noting = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
      Effect.andThen(Effect.sync(onCollective), effect)
    return {
      ...group,
      allGather: (...args) => noting(group.allGather(...args)),
      broadcast: (...args) => noting(group.broadcast(...args)),
      barrier: (...args) => noting(group.barrier(...args)),
      lane: (name) => Effect.map(group.lane(name), counted)
    }
  }
  return copyServiceLayer(CopyDriver.layer()).pipe(
    Layer.provideMerge(TensorEngineLayers.layer()),
    Layer.provide(Layer.effect(ProcessGroup, Effect.map(ProcessGroup, counted)))
  )
}

const allocate = Effect.gen(function* () {
  const memory = yield* HostMemory
  const tensor = Result.getOrThrow(tensorView(yield* memory.allocate(length), "uint8", [length]))
  tensorBytes(tensor)!.fill(0xa5)
  return new Map<string, Tensor>([["a", tensor]])
})
const bytesOf = (weights: ReadonlyMap<string, Tensor>): Uint8Array => tensorBytes(weights.get("a")!)!

const makePair = Effect.fnUntraced(function* (
  more: Partial<EdgeOptions> = {},
  before: Parameters<typeof give>[3] = () => Effect.succeed(undefined)
) {
  const store = yield* KeyValueStore
  let collectives = 0
  const options: EdgeOptions = {
    transport: countingTransport(() => {
      collectives += 1
    }),
    deadline: Duration.seconds(8),
    device: cpu,
    ...more
  }
  const [from, to] = [yield* allocate, yield* allocate]
  const givers = new Map<string, Giver>()
  const holds = (content: string): void => {
    const digests = new ChunkDigests(wholeBytes(from))
    givers.set(content, { piecesOf: wholeBytes(from), awaitChunk: (asked, chunk) => digests.of(asked, chunk) })
  }
  yield* store.put("f/member/parent", "here")
  const parent = yield* Scope.fork(yield* Effect.scope)
  const served = new Set<string>()
  const serve = Stream.runForEach(store.watch("f/ask/parent/"), (entries) =>
    Effect.forEach(
      knocksOf("f/", "parent", entries).filter(({ id }) => !served.has(id)),
      ({ id, door, knock }) => {
        served.add(id)
        return Effect.forkIn(
          Effect.ignore(
            give(store, door, knock, (asked) => Effect.map(before(asked), () => givers.get(asked.content)), options)
          ),
          parent
        )
      }
    )
  )
  yield* Effect.forkIn(serve, parent)
  const pool = yield* makeEdgePool(store, "f/", { id: "child", rank: 1 }, options)
  const take = (content: string, more: Partial<EdgeRequest> = {}, onChunk: (chunk: number) => void = () => {}) =>
    pool.take({
      parent: "parent",
      request: { ...request, content, ...more },
      piecesOf: wholeBytes(to),
      onChunk: (chunk) => Effect.sync(() => onChunk(chunk))
    })
  return { store, from, to, givers, holds, pool, take, parent, collectives: () => collectives }
})

const layers = Layer.mergeAll(KeyValueStoreMemory.layerMemory, HostMemoryLayers.layer, TensorEngineLayers.layer())
const run = <A, E>(program: Effect.Effect<A, E, Layer.Success<typeof layers> | Scope.Scope>) =>
  Effect.scoped(Effect.provide(program, Layer.fresh(layers)))

describe("an edge", () => {
  it.live("is opened for the first version and used for the next, whose chunks cost no collective", () =>
    run(
      Effect.gen(function* () {
        const { from, to, holds, pool, take, collectives } = yield* makePair()
        let before = 0
        for (const version of [1, 2, 3]) {
          bytesOf(from).forEach((_, at, all) => {
            all[at] = at * version
          })
          holds(`version ${version}`)
          const chunks: Array<number> = []
          before = collectives()
          yield* take(`version ${version}`, {}, (chunk) => chunks.push(chunk))
          assert.deepStrictEqual(chunks, [0, 1, 2, 3, 4, 5, 6])
          assert.isTrue(Buffer.from(bytesOf(to)).equals(bytesOf(from)))
          if (version > 1) assert.strictEqual(collectives(), before)
        }
        assert.isAbove(before, 0)
        assert.strictEqual(pool.opened(), 1)
        assert.strictEqual(chunkCount(request), 7)
      })
    )
  )

  it.live("goes on after its parent lacked a version, and gives the rest of one that was begun elsewhere", () =>
    run(
      Effect.gen(function* () {
        const { from, to, holds, pool, take } = yield* makePair()
        bytesOf(from).fill(9)
        holds("one")
        yield* take("one", { from: 3 })
        assert.strictEqual(bytesOf(to)[request.chunkBytes * 3 - 1], 0xa5)
        assert.strictEqual(bytesOf(to)[request.chunkBytes * 3], 9)
        const error = yield* Effect.flip(take("two"))
        assert.strictEqual(error.reason._tag, "PeerFailed")
        assert.include(error.message, "Member parent did not give it: it does not have this version")
        yield* take("one")
        assert.deepStrictEqual(new Set(bytesOf(to)), new Set([9]))
        assert.strictEqual(pool.opened(), 1)
      })
    )
  )

  it.live("waits for a parent that has not heard of a version yet, and tells it which one", () =>
    run(
      Effect.gen(function* () {
        const [isAsked, isKnown] = [yield* Deferred.make<number | undefined>(), yield* Deferred.make<undefined>()]
        const { from, to, holds, pool, take } = yield* makePair({}, ({ serial }) =>
          Effect.andThen(Deferred.succeed(isAsked, serial), Deferred.await(isKnown))
        )
        const taking = yield* Effect.forkChild(take("one", { serial: 7 }), { startImmediately: true })
        assert.strictEqual(yield* Deferred.await(isAsked), 7)
        bytesOf(from).fill(3)
        holds("one")
        yield* Deferred.succeed(isKnown, undefined)
        yield* Fiber.join(taking)
        assert.deepStrictEqual(new Set(bytesOf(to)), new Set([3]))
        assert.strictEqual(pool.opened(), 1)
      })
    )
  )

  it.live("is not waited for where the parent was removed before it opened one", () =>
    run(
      Effect.gen(function* () {
        const removed = yield* Deferred.make<void>()
        const { take, parent, store } = yield* makePair({ untilRemoved: () => Deferred.await(removed) })
        yield* Scope.close(parent, Exit.fail("killed"))
        const taking = yield* Effect.forkChild(Effect.flip(take("one")), { startImmediately: true })
        yield* Stream.runHead(Stream.filter(store.watch("f/ask/parent/"), (knocks) => knocks.size > 0))
        yield* Deferred.succeed(removed, undefined)
        assert.include((yield* Fiber.join(taking)).message, "it was removed")
      })
    )
  )

  it.live("is closed where a chunk is not what its digest says, and opened again", () =>
    run(
      Effect.gen(function* () {
        const { from, to, givers, holds, pool, take } = yield* makePair()
        bytesOf(from).fill(1)
        holds("one")
        const honest = givers.get("one")!
        const proven: Array<number> = []
        givers.set("one", {
          ...honest,
          awaitChunk: (asked, chunk) =>
            Effect.map(honest.awaitChunk(asked, chunk), (digest) => (chunk === 2 ? "0".repeat(64) : digest))
        })
        const error = yield* Effect.flip(take("one", {}, (chunk) => proven.push(chunk)))
        assert.strictEqual(error.reason._tag, "NotProven")
        assert.include(error.message, "Chunk 2 from member parent has digest")
        assert.deepStrictEqual(proven, [0, 1])
        holds("one")
        yield* take("one")
        assert.deepStrictEqual(new Set(bytesOf(to)), new Set([1]))
        assert.strictEqual(pool.opened(), 2)
      })
    )
  )

  it.live("takes as long as the limit of its parent says, but for ranks that are near", () =>
    run(
      Effect.gen(function* () {
        const bytesPerSecond = 200_000
        const limit = yield* makeSendLimit(bytesPerSecond)
        const seconds = (isNear: boolean) =>
          Effect.gen(function* () {
            const { from, to, holds, take } = yield* makePair({ limit, isNear: () => isNear })
            bytesOf(from).fill(7)
            holds("one")
            const [time] = yield* Effect.timed(take("one"))
            assert.deepStrictEqual(new Set(bytesOf(to)), new Set([7]))
            return Duration.toSeconds(time)
          })
        // A full bucket goes at once, the rest at what is left of the limit.
        assert.isAtLeast(yield* Effect.scoped(seconds(false)), (0.95 * length) / bytesPerSecond - 0.05)
        const stuck = { mostAtOnce: 1, take: () => Effect.die("who is near is not limited") }
        const { from, to, holds, take } = yield* makePair({ limit: stuck, isNear: () => true })
        bytesOf(from).fill(8)
        holds("two")
        yield* take("two")
        assert.deepStrictEqual(new Set(bytesOf(to)), new Set([8]))
      })
    )
  )

  it.live("ends when its parent is gone, while it waits for a chunk too", () =>
    run(
      Effect.gen(function* () {
        const gone: Array<string> = []
        const onGone = (member: string) => Effect.sync(() => void gone.push(member))
        const { givers, holds, take, parent, store } = yield* makePair({ onGone })
        holds("one")
        const honest = givers.get("one")!
        const isAsked = yield* Deferred.make<void>()
        givers.set("one", {
          ...honest,
          awaitChunk: (asked, chunk) =>
            chunk < 2
              ? honest.awaitChunk(asked, chunk)
              : Effect.andThen(Deferred.succeed(isAsked, undefined), Effect.never)
        })
        const taking = yield* Effect.forkChild(Effect.flip(take("one")), { startImmediately: true })
        yield* Deferred.await(isAsked)
        yield* Scope.close(parent, Exit.fail("killed"))
        const error = yield* Fiber.join(taking)
        assert.strictEqual(error.reason._tag, "PeerFailed")
        assert.include(error.message, "Member parent left")
        assert.include(gone, "parent")
        yield* store.remove("f/member/parent")
        assert.include((yield* Effect.flip(take("one"))).message, "its process is gone")
      })
    )
  )
})
