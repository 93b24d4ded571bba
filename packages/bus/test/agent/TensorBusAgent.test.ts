// SPDX-License-Identifier: Apache-2.0
/**
 * Agents and clients in one process: layouts of all kinds both ways, several pairs per batch, types of unequal width, and
 * everything that can be asked for wrongly, in the wrong order, or by one side only.
 */
import { readdirSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { type Placement, partial, replicate, shard, stridedShard } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { makeCompletions } from "../../src/agent/Completions.ts"
import { busError } from "../../src/BusError.ts"
import * as BatchHandlers from "../../src/client/BatchHandler.ts"
import { TensorBusClient, type TensorBusClientShape } from "../../src/client/TensorBusClient.ts"
import { InitPair, RegisterTensors } from "../../src/command/Command.ts"
import { decodeReply, replyKey } from "../../src/command/Reply.ts"
import * as AgentStateMemory from "../../src/state/AgentStateMemory.ts"
import type { KeyValueStoreShape } from "../../src/store/KeyValueStore.ts"
import { makeCluster } from "../cluster.ts"
import { isSoak } from "../support.ts"
import { faultOf, fill, makeTensor, ranksOf, type SideLayout, sourceValues, targetValues } from "../tensors.ts"

const layout = (mesh: ReadonlyArray<number>, ...placements: ReadonlyArray<Placement>): SideLayout => ({
  mesh,
  placements
})

interface TensorCase {
  readonly pair: string
  readonly shape: ReadonlyArray<number>
  readonly from: DType
  readonly to: DType
}

interface BatchCase {
  readonly name: string
  readonly pairs: Readonly<Record<string, readonly [SideLayout, SideLayout]>>
  readonly tensors: ReadonlyArray<TensorCase>
  readonly bucketBytes?: number
}

const f32 = { from: "float32", to: "float32" } as const

const cases: ReadonlyArray<BatchCase> = [
  {
    name: "2x2 to 4x2, shards of both dimensions, narrowing and widening",
    pairs: { w: [layout([2, 2], shard(0), shard(1)), layout([4, 2], shard(0), replicate)] },
    tensors: [
      { pair: "w", shape: [8, 12], ...f32 },
      { pair: "w", shape: [16, 4], from: "float32", to: "bfloat16" },
      { pair: "w", shape: [4, 6], from: "bfloat16", to: "float32" }
    ],
    bucketBytes: 128
  },
  {
    name: "partial sources, uneven shards and several pairs",
    pairs: {
      sums: [layout([2, 2], partial("sum"), shard(0)), layout([3], shard(1))],
      whole: [layout([4], replicate), layout([3], replicate)],
      strided: [layout([2, 2], stridedShard(0, 2), shard(0)), layout([3], shard(-1))]
    },
    tensors: [
      { pair: "whole", shape: [5], from: "int32", to: "int32" },
      { pair: "sums", shape: [6, 7], ...f32 },
      { pair: "strided", shape: [8, 6], ...f32 },
      { pair: "whole", shape: [], ...f32 },
      { pair: "sums", shape: [4, 3], from: "float64", to: "float32" },
      { pair: "strided", shape: [0, 4], ...f32 }
    ]
  },
  {
    name: "4x2 to 2x2",
    pairs: { w: [layout([4, 2], shard(0), shard(0)), layout([2, 2], replicate, shard(1))] },
    tensors: [{ pair: "w", shape: [17, 9], ...f32 }]
  }
]

const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

/** Agents of two sides, with their clients, by side and place. */
const makeSides = Effect.fnUntraced(function* (sizes: readonly [number, number], options = {}) {
  const cluster = yield* makeCluster(options)
  const startMany = (count: number, first: number) =>
    Effect.forEach(
      Array.from({ length: count }, (_, at) => first + at),
      (rank) => cluster.start(rank)
    )
  return { ...cluster, sides: [yield* startMany(sizes[0], 0), yield* startMany(sizes[1], sizes[0])] as const }
})

const sideNames = ["a", "b"] as const

describe("moves", () => {
  for (const batchCase of cases) {
    it.live(batchCase.name, () =>
      Effect.scoped(
        Effect.gen(function* () {
          const entries = Object.entries(batchCase.pairs)
          const sizes = [ranksOf(entries[0]![1][0]), ranksOf(entries[0]![1][1])] as const
          const { sides, memory } = yield* makeSides(sizes)
          const everyone = [0, 1].flatMap((side) =>
            sides[side]!.map((one, place) => ({ ...one, side: side as 0 | 1, place }))
          )
          // Pairs are made in another order on each rank.
          yield* all(
            everyone.map(({ client, side, place }) =>
              all(
                [...entries.keys()].map((_, at) => {
                  const [pair, layouts] = entries[(at + place) % entries.length]!
                  return client.initPair({
                    pair,
                    local: sideNames[side],
                    remote: sideNames[1 - side]!,
                    ...layouts[side]!
                  })
                })
              )
            )
          )
          const tensors = yield* Effect.forEach(everyone, ({ side, place }) =>
            Effect.forEach(batchCase.tensors, ({ pair, shape, from, to }) => {
              const { local } = sourceValues(batchCase.pairs[pair]![side]!, shape, place, 0)
              return Effect.map(makeTensor(memory, side === 0 ? from : to, local), (tensor) => [pair, tensor] as const)
            })
          )
          yield* all(
            everyone.map(({ client }, at) =>
              client.registerTensors({
                batch: "batch",
                tensors: tensors[at]!,
                ...(batchCase.bucketBytes === undefined ? {} : { bucketBytes: batchCase.bucketBytes })
              })
            )
          )
          const isPartial = entries.some(([, [a]]) => a.placements.some(({ _tag }) => _tag === "Partial"))
          for (const [round, source] of [0, 0, ...(isPartial ? [] : [1, 0])].entries()) {
            for (const [at, { side, place }] of everyone.entries()) {
              for (const [index, { pair, shape }] of batchCase.tensors.entries()) {
                const tensor = tensors[at]![index]![1]
                if (side === source)
                  fill(tensor, sourceValues(batchCase.pairs[pair]![side]!, shape, place, round).values)
                else tensor.storage.bytes!.fill(0xa5)
              }
            }
            yield* all(everyone.map(({ client, side }) => client.transfer("batch", side === source ? "send" : "recv")))
            for (const [at, { side, place }] of everyone.entries()) {
              if (side === source) continue
              for (const [index, { pair, shape }] of batchCase.tensors.entries()) {
                const layouts = batchCase.pairs[pair]!
                const { values } = targetValues(layouts[source]!, layouts[side]!, shape, place, round)
                assert.isUndefined(
                  faultOf(tensors[at]![index]![1], values),
                  `round ${round}, rank ${at}, tensor ${index}`
                )
              }
            }
          }
          if (isPartial) {
            const ends = yield* all(
              everyone.map(({ client, side }) => Effect.flip(client.transfer("batch", side === 1 ? "send" : "recv")))
            )
            for (const error of ends) assert.strictEqual(error.reason._tag, "PartialTarget")
          }
          yield* all(everyone.map(({ client }) => client.cleanupBatch("batch")))
          // The name can be used again, whoever is first.
          yield* all(
            everyone.map(({ client }, at) => client.registerTensors({ batch: "batch", tensors: tensors[at]! }))
          )
        })
      )
    )
  }
})

/** Two agents with a pair "p" of one rank each. */
const onePair = Effect.fnUntraced(function* (options = {}) {
  const made = yield* makeSides([1, 1], options)
  const [[a], [b]] = made.sides
  const side = (local: string, remote: string) => ({ pair: "p", local, remote, ...layout([1], shard(0)) })
  yield* all([a!.client.initPair(side("a", "b")), b!.client.initPair(side("b", "a"))])
  const tensor = () => makeTensor(made.memory, "float32", [4])
  return { ...made, a: a!, b: b!, tensor }
})

const register = (
  client: {
    readonly registerTensors: import("../../src/client/TensorBusClient.ts").TensorBusClientShape["registerTensors"]
  },
  batch: string,
  ...tensors: ReadonlyArray<Tensor>
) => client.registerTensors({ batch, tensors: tensors.map((tensor) => ["p", tensor] as const) })

describe("refusals", () => {
  const soon = { deadline: "300 millis" } as const

  it.live("a remote that never comes", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { sides } = yield* makeSides([1, 1], soon)
        const error = yield* Effect.flip(
          sides[0][0]!.client.initPair({ pair: "p", local: "a", remote: "b", ...layout([2], replicate) })
        )
        assert.strictEqual(error.reason._tag, "RemoteMissing")
        assert.match(error.message, /1 of 2 agents of side a came \(0\); 0 of an unknown number of agents of side b/)
        assert.deepStrictEqual(yield* sides[0][0]!.agent.pairs, [])
      })
    )
  )

  it.live("a batch that one side registers, a transfer that one side begins", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, map } = yield* onePair({ deadline: "700 millis" })
        const [x, y] = [yield* tensor(), yield* tensor()]
        const alone = yield* Effect.flip(register(a.client, "b1", x))
        assert.strictEqual(alone.reason._tag, "RemoteMissing")
        assert.match(alone.message, /agents 1 of pair p did not register/)
        assert.deepStrictEqual([...map.list("batch/").keys()], [])
        yield* all([register(a.client, "b1", x), register(b.client, "b1", y)])
        fill(x, [1, 2, 3, 4])
        const waiting = yield* Effect.flip(a.client.transfer("b1", "send"))
        assert.include(["RemoteMissing", "BatchMismatch"], waiting.reason._tag)
        assert.match(waiting.message, /b1/)
      })
    )
  )

  it.live("pairs and batches twice, unknown ones, and names that cannot be", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* onePair(soon)
        const [x, y] = [yield* tensor(), yield* tensor()]
        const tagOf = (effect: Effect.Effect<void, import("../../src/BusError.ts").BusError>) =>
          Effect.map(Effect.flip(effect), ({ reason }) => reason._tag)
        const pair = (over: object) =>
          a.client.initPair({ pair: "q", local: "a", remote: "b", ...layout([1], shard(0)), ...over })
        assert.strictEqual(yield* tagOf(pair({ pair: "p" })), "PairExists")
        assert.strictEqual(yield* tagOf(pair({ remote: "a" })), "InvalidCommand")
        assert.strictEqual(yield* tagOf(pair({ pair: "" })), "InvalidCommand")
        assert.strictEqual(yield* tagOf(pair({ pair: "x".repeat(300) })), "InvalidCommand")
        const wrongMesh = new InitPair({
          pairName: "q",
          localName: "a",
          expectedWorldSize: 3,
          remoteName: "b",
          meshShapePayload: Uint8Array.from(Buffer.from("80044b024b0286942e", "hex"))
        })
        assert.strictEqual(yield* tagOf(a.client.send(wrongMesh)), "InvalidCommand")
        const hostile = new InitPair({
          ...wrongMesh,
          meshShapePayload: Uint8Array.from(Buffer.from("80048c026f738c0673797374656d932e", "hex"))
        })
        const refused = yield* Effect.flip(a.client.send(hostile))
        assert.strictEqual(refused.reason._tag, "InvalidPayload")
        assert.match(refused.message, /Forbidden: .*os\.system/)
        for (const call of [
          a.client.transfer("none", "send"),
          a.client.cleanupBatch("none"),
          a.client.transferSignal("none")
        ]) {
          assert.strictEqual((yield* Effect.flip(call)).reason._tag, "UnknownBatch")
        }
        assert.strictEqual(
          yield* tagOf(a.client.registerTensors({ batch: "b", tensors: [["unknown", x]] })),
          "UnknownPair"
        )
        assert.strictEqual(yield* tagOf(a.client.registerTensors({ batch: "b", tensors: [] })), "InvalidCommand")
        yield* all([register(a.client, "b", x), register(b.client, "b", y)])
        assert.strictEqual(yield* tagOf(register(a.client, "b", x)), "BatchExists")
        const junk = new RegisterTensors({ batchId: "c", tensors: [["p", Uint8Array.of(1, 2, 3)]] })
        assert.strictEqual(yield* tagOf(a.client.send(junk)), "InvalidPayload")
        assert.deepStrictEqual(yield* a.agent.batches, ["b"])
      })
    )
  )

  it.live("both sides send; batches in another order; other tensors under one name", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, memory } = yield* onePair({ deadline: "3 seconds" })
        const tensors = yield* Effect.forEach([0, 1, 2, 3], () => tensor())
        const [x, y, z, w] = tensors as [Tensor, Tensor, Tensor, Tensor]
        yield* all([register(a.client, "one", x), register(b.client, "one", y)])
        yield* all([register(b.client, "two", w), register(a.client, "two", z)])
        for (const [first, second] of [
          [a.client.transfer("one", "send"), b.client.transfer("one", "send")],
          [a.client.transfer("one", "send"), b.client.transfer("two", "recv")]
        ] as const) {
          for (const error of yield* all([Effect.flip(first), Effect.flip(second)])) {
            assert.strictEqual(error.reason._tag, "BatchMismatch", error.message)
          }
        }
        // Nothing is stuck afterwards.
        fill(z, [5, 6, 7, 8])
        yield* all([a.client.transfer("two", "send"), b.client.transfer("two", "recv")])
        assert.isUndefined(faultOf(w, [5, 6, 7, 8]))
        const longer = yield* makeTensor(memory, "float32", [5])
        for (const error of yield* all([
          Effect.flip(register(a.client, "three", x)),
          Effect.flip(register(b.client, "three", longer))
        ])) {
          assert.strictEqual(error.reason._tag, "BatchMismatch")
          assert.match(error.message, /tensor 0 is p \[4\] on one side and p \[5\]/)
        }
      })
    )
  )

  it.live("a batch of nothing: the same signals, refusals and waits as any other", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, memory } = yield* onePair({ deadline: "700 millis" })
        const [x, y] = [yield* makeTensor(memory, "float32", [0, 3]), yield* makeTensor(memory, "float32", [0, 3])]
        yield* all([register(a.client, "empty", x), register(b.client, "empty", y)])
        for (let round = 0; round < 2; round++) {
          const sending = yield* Effect.forkChild(a.client.transfer("empty", "send"), { startImmediately: true })
          while (!(yield* b.client.transferSignal("empty"))) yield* Effect.yieldNow
          yield* b.client.transfer("empty", "recv")
          yield* Fiber.join(sending)
          assert.isFalse(yield* a.client.transferSignal("empty"))
        }
        const both = [a.client.transfer("empty", "send"), b.client.transfer("empty", "send")]
        for (const error of yield* all(both.map((each) => Effect.flip(each)))) {
          assert.strictEqual(error.reason._tag, "BatchMismatch", error.message)
        }
        const alone = yield* Effect.flip(a.client.transfer("empty", "send"))
        assert.strictEqual(alone.reason._tag, "RemoteMissing", alone.message)
      })
    )
  )

  it.live("ranks of a side that do not agree, and layouts that do not fit their tensors", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { sides, memory } = yield* makeSides([2, 1], soon)
        const [[a, b], [c]] = sides as unknown as readonly [
          ReadonlyArray<{ client: import("../../src/client/TensorBusClient.ts").TensorBusClientShape }>,
          ReadonlyArray<{ client: import("../../src/client/TensorBusClient.ts").TensorBusClientShape }>
        ]
        const left = (placement: Placement) => ({ pair: "p", local: "a", remote: "b", ...layout([2], placement) })
        const right = { pair: "p", local: "b", remote: "a", ...layout([1], replicate) }
        for (const error of yield* all([
          Effect.flip(a!.client.initPair(left(shard(0)))),
          Effect.flip(b!.client.initPair(left(shard(1)))),
          Effect.flip(c!.client.initPair(right))
        ])) {
          // A rank that comes when the others have given up waits for them; it is told what they found.
          assert.include(["PairMismatch", "RemoteMissing"], error.reason._tag)
          assert.match(error.message, /agent [01] states/)
        }
        yield* all([a!.client.initPair(left(shard(0))), b!.client.initPair(left(shard(0))), c!.client.initPair(right)])
        const shards = yield* Effect.forEach([[3], [1], [4]], (shape) => makeTensor(memory, "float32", shape))
        for (const error of yield* all(
          [a!, b!, c!].map(({ client }, at) => Effect.flip(register(client, "uneven", shards[at]!)))
        )) {
          assert.strictEqual(error.reason._tag, "BatchMismatch")
          assert.match(error.message, /\[3\] at place 0 of its mesh, where its layout of \[4\] gives \[2\]/)
        }
      })
    )
  )
})

describe("life", () => {
  it.live("signals, replies and semaphores come and go", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, map } = yield* onePair()
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "b", x), register(b.client, "b", y)])
        assert.isFalse(yield* b.client.transferSignal("b"))
        const sending = yield* Effect.forkChild(a.client.transfer("b", "send"), { startImmediately: true })
        while (!(yield* b.client.transferSignal("b"))) yield* Effect.yieldNow
        yield* b.client.transfer("b", "recv")
        yield* Fiber.join(sending)
        assert.isFalse(yield* a.client.transferSignal("b"))
        yield* all([a.client.cleanupBatch("b"), b.client.cleanupBatch("b")])
        assert.deepStrictEqual([...map.list("signal/").keys()], [])
        assert.deepStrictEqual(
          readdirSync("/dev/shm").filter((name) => name.startsWith(`sem.tf_${process.pid}_`)),
          []
        )
      })
    )
  )

  it.live("the end of a transfer takes nothing back of the signal of the next one, however late it is told", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const puts: Array<string> = []
        const gate = Deferred.makeUnsafe<void>()
        const { a, b, tensor, map } = yield* onePair({
          seen: (store: KeyValueStoreShape): KeyValueStoreShape => ({
            ...store,
            put: (key, value, options) => {
              if (!key.startsWith("signal/")) return store.put(key, value, options)
              puts.push(value)
              // What the receiver may tell of an end comes after the next beginning.
              return Effect.andThen(
                value === "0" ? Deferred.await(gate) : Effect.void,
                Effect.ensuring(
                  store.put(key, value, options),
                  value === "0"
                    ? Effect.void
                    : Effect.sync(() => puts.length > 1 && Deferred.doneUnsafe(gate, Effect.void))
                )
              )
            }
          })
        })
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "b", x), register(b.client, "b", y)])
        fill(x, [1, 2, 3, 4])
        yield* all([a.client.transfer("b", "send"), b.client.transfer("b", "recv")])
        assert.isUndefined(faultOf(y, [1, 2, 3, 4]))
        assert.deepStrictEqual(
          yield* all([a.client.transferSignal("b"), b.client.transferSignal("b")]),
          [false, false],
          "whoever has ended a transfer knows that it has"
        )
        fill(x, [5, 6, 7, 8])
        const sending = yield* Effect.forkChild(a.client.transfer("b", "send"), { startImmediately: true })
        const isTold = Effect.gen(function* () {
          while (!(yield* b.client.transferSignal("b"))) yield* Effect.yieldNow
          for (let look = 0; look < 20; look++) if (!(yield* b.client.transferSignal("b"))) return false
          return true
        })
        assert.strictEqual(yield* Effect.timeout(isTold, "10 seconds"), true)
        yield* b.client.transfer("b", "recv")
        yield* Fiber.join(sending)
        assert.isUndefined(faultOf(y, [5, 6, 7, 8]))
        // And back: each direction has a signal of its own.
        const back = yield* Effect.forkChild(b.client.transfer("b", "send"), { startImmediately: true })
        while (!(yield* a.client.transferSignal("b"))) yield* Effect.yieldNow
        yield* a.client.transfer("b", "recv")
        yield* Fiber.join(back)
        assert.deepStrictEqual(puts, ["1", "2", "1"], "only who sends tells")
        yield* all([a.client.cleanupBatch("b"), b.client.cleanupBatch("b")])
        assert.deepStrictEqual([...map.list("signal/").keys()], [])
      })
    )
  )

  it.live("a transfer that was given up on one side does not hide the signal of the next one", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* onePair({ deadline: "300 millis" })
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "b", x), register(b.client, "b", y)])
        const missed = yield* Effect.flip(a.client.transfer("b", "send"))
        assert.strictEqual(missed.reason._tag, "RemoteMissing", missed.message)
        for (let round = 0; round < 3; round++) {
          fill(x, [round, 2, 3, 4])
          const sending = yield* Effect.forkChild(a.client.transfer("b", "send"), { startImmediately: true })
          while (!(yield* b.client.transferSignal("b"))) yield* Effect.yieldNow
          yield* b.client.transfer("b", "recv")
          yield* Fiber.join(sending)
          assert.isUndefined(faultOf(y, [round, 2, 3, 4]))
          assert.isFalse(yield* b.client.transferSignal("b"))
          assert.isFalse(yield* a.client.transferSignal("b"))
        }
      })
    )
  )

  it.live("an agent that stops answers its clients, and the next agent makes the pair again", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const cluster = yield* makeCluster({ deadline: "5 seconds" })
        const side = (local: string, remote: string) => ({ pair: "p", local, remote, ...layout([1], shard(0)) })
        const b = yield* cluster.start(1)
        const [x, y] = [
          yield* makeTensor(cluster.memory, "float32", [4]),
          yield* makeTensor(cluster.memory, "float32", [4])
        ]
        for (let life = 0; life < 2; life++) {
          const scope = yield* Scope.make()
          const a = yield* Scope.provide(cluster.start(0), scope)
          yield* all([a.client.initPair(side("a", "b")), b.client.initPair(side("b", "a"))])
          yield* all([register(a.client, "b", x), register(b.client, "b", y)])
          fill(x, [life, 1, 2, 3])
          yield* all([a.client.transfer("b", "send"), b.client.transfer("b", "recv")])
          assert.isUndefined(faultOf(y, [life, 1, 2, 3]))
          const waiting = yield* Effect.forkChild(Effect.flip(a.client.transfer("b", "send")), {
            startImmediately: true
          })
          while (![...cluster.map.list("signal/").values()].includes("2")) yield* Effect.sleep("5 millis")
          yield* Scope.close(scope, Exit.void)
          const told = yield* Fiber.join(waiting)
          assert.include(["Stopping", "AgentGone"], told.reason._tag)
          const error = yield* Effect.flip(b.client.transfer("b", "recv"))
          assert.strictEqual(error.reason._tag, "PairBroken")
          assert.match(error.message, /agent 0/)
        }
      })
    )
  )

  it.live("a batch whose registration is interrupted at any moment is not left behind", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, memory } = yield* onePair({ deadline: "2 seconds" })
        const [x, y] = [yield* tensor(), yield* tensor()]
        const clientContext = (client: TensorBusClientShape) =>
          Context.make(TensorBusClient, client).pipe(Context.add(HostMemory, memory))
        for (let round = 0; round < (isSoak ? 60 : 12); round++) {
          const other = yield* Effect.forkChild(Effect.exit(register(b.client, `b${round}`, y)), {
            startImmediately: true
          })
          const held = Effect.scoped(
            Effect.andThen(BatchHandlers.make({ batch: `b${round}`, tensors: [["p", x]] }), Effect.never)
          )
          const holding = yield* Effect.forkChild(Effect.provideContext(held, clientContext(a.client)), {
            startImmediately: true
          })
          for (let step = 0; step < round * 3; step++) yield* Effect.yieldNow
          if (round % 4 === 3) yield* Effect.sleep(round)
          yield* Fiber.interrupt(holding)
          yield* Fiber.join(other)
          yield* Effect.ignore(b.client.cleanupBatch(`b${round}`))
        }
        const settled = Effect.gen(function* () {
          while ((yield* a.agent.batches).length > 0) yield* Effect.sleep("10 millis")
        })
        yield* Effect.timeout(settled, "10 seconds")
        // Both sides still work together.
        yield* all([register(a.client, "last", x), register(b.client, "last", y)])
        fill(x, [4, 3, 2, 1])
        yield* all([a.client.transfer("last", "send"), b.client.transfer("last", "recv")])
        assert.isUndefined(faultOf(y, [4, 3, 2, 1]))
      })
    )
  )

  it.live("replies expire, and the semaphore of a queue is never posted for one", () =>
    Effect.gen(function* () {
      const state = AgentStateMemory.make()
      const completions = makeCompletions(state, Duration.seconds(60))
      const error = busError("UnknownBatch", { detail: "x".repeat(100_000), remedy: "" })
      yield* completions.complete("/gone_1", error)
      yield* completions.complete("/gone_2", undefined)
      yield* completions.complete("/cq_queue", undefined)
      const reply = decodeReply((yield* state.get(replyKey("/gone_1")))!)
      assert.isTrue(reply?.type === "Error" && reply.tag === "UnknownBatch" && reply.message.length < 5_000)
      assert.isUndefined(yield* state.get(replyKey("/cq_queue")))
      const now = yield* monotonicMillis
      yield* completions.expire(now + 59_000)
      assert.isDefined(yield* state.get(replyKey("/gone_2")))
      yield* completions.expire(now + 61_000)
      assert.isUndefined(yield* state.get(replyKey("/gone_1")))
      assert.isUndefined(yield* state.get(replyKey("/gone_2")))
    })
  )
})
