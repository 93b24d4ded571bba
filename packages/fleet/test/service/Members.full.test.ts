// SPDX-License-Identifier: Apache-2.0
/** Members as fibers of one process, with the real copy driver: policies, going back, proof, programs in use. */

import { assert, describe, it } from "@effect/vitest"
import {
  CopyDriver,
  HostMemory as HostMemoryLayers,
  TensorEngine as TensorEngineLayers
} from "@tensorferry/backend-torch-copy"
import { KeyValueStoreMemory } from "@tensorferry/bus"
import { KeyValueStore, keyValueError } from "@tensorferry/bus/store/KeyValueStore"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type { Scope } from "effect/Scope"
import * as Stream from "effect/Stream"
import type { FleetShape } from "../../src/service/Fleet.ts"
import * as FleetLayer from "../../src/service/FleetLayer.ts"
import type { FleetTimes } from "../../src/version/FleetTimes.ts"

/** Waits that a test is not about last longer than a busy machine needs. */
const times: FleetTimes = { beat: 0.05, fence: 2, grace: 0.2, dead: 2, stage: 20, prepare: 10 }
const shortTimes: FleetTimes = { ...times, stage: 4, prepare: 1.5 }
const length = 70_001
const transport = copyServiceLayer(CopyDriver.layer()).pipe(Layer.provideMerge(TensorEngineLayers.layer()))

const allocate = Effect.gen(function* () {
  const memory = yield* HostMemory
  const entries = yield* Effect.forEach(["a", "b"], (name) =>
    Effect.map(memory.allocate(length), (storage): readonly [string, Tensor] => {
      const tensor = Result.getOrThrow(tensorView(storage, "uint8", [length]))
      tensorBytes(tensor)!.fill(0xa5)
      return [name, tensor]
    })
  )
  return new Map(entries)
})

const fill = (weights: ReadonlyMap<string, Tensor>, value: number): void => {
  for (const tensor of weights.values()) tensorBytes(tensor)!.fill(value)
}

const member = (rank: number, hooks: Partial<FleetLayer.FleetOptions> = {}) =>
  Effect.gen(function* () {
    const [weights, incoming, kept] = [yield* allocate, yield* allocate, yield* allocate]
    const role = rank === 0 ? "source" : "replica"
    const options = { name: "fibers", rank, role, weights, times, transport, edgeDeadline: "5 seconds" } as const
    const fleet = yield* FleetLayer.make({ ...options, ...(rank === 0 ? {} : { incoming, kept }), ...hooks })
    return { fleet, weights }
  })

const serving = (fleet: FleetShape, label: string) =>
  fleet.changes.pipe(
    Stream.filter((status) => status.canServe && status.member.live?.label === label),
    Stream.runHead,
    Effect.timeout("60 seconds")
  )

const layers = Layer.mergeAll(KeyValueStoreMemory.layerMemory, HostMemoryLayers.layer, TensorEngineLayers.layer())
const run = <A, E>(program: Effect.Effect<A, E, Layer.Success<typeof layers> | Scope>) =>
  Effect.scoped(Effect.provide(program, Layer.fresh(layers)))

const bytesOf = (weights: ReadonlyMap<string, Tensor>): ReadonlySet<number> =>
  new Set([...weights.values()].flatMap((tensor) => [...tensorBytes(tensor)!]))

describe("members of a fleet", () => {
  it.live("go back to what they kept under a new number, without receiving it", () =>
    run(
      Effect.gen(function* () {
        const source = yield* member(0)
        const replicas = [yield* member(1), yield* member(2)]
        for (const [label, value] of [
          ["one", 1],
          ["two", 2],
          ["one again", 1]
        ] as const) {
          fill(source.weights, value)
          const { serial } = yield* source.fleet.publish({ label })
          for (const { fleet, weights } of replicas) {
            yield* serving(fleet, label)
            assert.deepStrictEqual(bytesOf(weights), new Set([value]))
          }
          assert.strictEqual(serial, ["one", "two", "one again"].indexOf(label) + 1)
        }
      })
    )
  )

  it.live("follow one by one where the policy asks for one of them", () =>
    run(
      Effect.gen(function* () {
        const short = { times: { ...shortTimes, stage: 1 } }
        const source = yield* member(0, short)
        const replicas = [yield* member(1, short), yield* member(2, short)]
        fill(source.weights, 7)
        const none = yield* Effect.flip(source.fleet.publish({ label: "nine", policy: { _tag: "Quorum", count: 3 } }))
        assert.include(none.message, "2 replicas, of which the policy needs 3")
        yield* source.fleet.publish({ label: "seven", policy: { _tag: "Each" } })
        for (const { fleet } of replicas) yield* serving(fleet, "seven")
      })
    )
  )

  it.live("keep the old version where the source changes what it publishes, and say what differs", () =>
    run(
      Effect.gen(function* () {
        // Silence is not what this is about, and a replica that is removed has no say.
        const patient = { ...times, stage: 15, dead: 40 }
        let spoil = (): void => undefined
        const store = yield* KeyValueStore
        // When the version is proposed, its digests have been taken.
        const spoiling = KeyValueStore.of({
          ...store,
          create: (key, value) => {
            if (value.includes('"Propose"')) spoil()
            return store.create(key, value)
          }
        })
        const source = yield* Effect.provideService(member(0, { times: patient }), KeyValueStore, spoiling)
        const replica = yield* member(1, { times: patient })
        fill(source.weights, 1)
        yield* source.fleet.publish({ label: "one" })
        yield* serving(replica.fleet, "one")
        fill(source.weights, 2)
        spoil = () => void tensorBytes(source.weights.get("b")!)!.fill(3)
        const error = yield* Effect.flip(source.fleet.publish({ label: "two" }))
        assert.strictEqual(error.reason._tag, "UpdateAborted")
        assert.match(error.message, /Tensor b of version 2 has digest/)
        yield* serving(replica.fleet, "one")
        assert.deepStrictEqual(bytesOf(replica.weights), new Set([1]))
      })
    )
  )

  it.live("wait with a commit for a program that uses the old version, and name who does not stop in time", () =>
    run(
      Effect.gen(function* () {
        const paused: Array<string> = []
        const hooks = {
          onPause: Effect.sync(() => void paused.push("pause")),
          onResume: Effect.sync(() => void paused.push("resume"))
        }
        const source = yield* member(0, { times: shortTimes })
        const { fleet, weights } = yield* member(1, { ...hooks, times: shortTimes })
        fill(source.weights, 1)
        yield* source.fleet.publish({ label: "one" })
        yield* serving(fleet, "one")
        paused.length = 0
        const [entered, leave] = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
        const using = yield* Effect.forkChild(
          fleet.use(({ label }) =>
            Effect.gen(function* () {
              yield* Deferred.succeed(entered, undefined)
              yield* Deferred.await(leave)
              return [label, [...bytesOf(weights)]] as const
            })
          )
        )
        yield* Deferred.await(entered)
        fill(source.weights, 2)
        const error = yield* Effect.flip(source.fleet.publish({ label: "two" }))
        assert.include(error.message, "They had not stopped serving")
        yield* Deferred.succeed(leave, undefined)
        assert.deepStrictEqual(yield* Fiber.join(using), ["one", [1]])
        yield* serving(fleet, "one")
        yield* source.fleet.publish({ label: "two" })
        yield* serving(fleet, "two")
        assert.deepStrictEqual(paused.slice(-2), ["pause", "resume"])
        assert.deepStrictEqual(bytesOf(weights), new Set([2]))
      })
    )
  )

  it.live("stop a program that runs when they are cut off from the store, and serve again when they are back", () =>
    run(
      Effect.gen(function* () {
        const store = yield* KeyValueStore
        let isCut = false
        const lost = keyValueError("Unreachable", { op: "list", detail: "The cable is out.", remedy: "" })
        const cut = KeyValueStore.of({
          ...store,
          put: (...args) => (isCut ? Effect.fail(lost) : store.put(...args)),
          list: (prefix) => (isCut ? Effect.fail(lost) : store.list(prefix))
        })
        const source = yield* member(0)
        const { fleet, weights } = yield* Effect.provideService(member(1), KeyValueStore, cut)
        const other = yield* member(2)
        fill(source.weights, 1)
        yield* source.fleet.publish({ label: "one" })
        yield* serving(fleet, "one")
        yield* serving(other.fleet, "one")
        const entered = yield* Deferred.make<void>()
        const using = yield* Effect.forkChild(
          Effect.flip(fleet.use(() => Effect.andThen(Deferred.succeed(entered, undefined), Effect.never)))
        )
        yield* Deferred.await(entered)
        isCut = true
        const error = yield* Fiber.join(using)
        assert.include(error.message, "has not reached the store")
        fill(source.weights, 2)
        yield* source.fleet.publish({ label: "two" })
        assert.include((yield* Effect.flip(fleet.use(() => Effect.void))).message, "NotServing")
        yield* serving(other.fleet, "two")
        isCut = false
        yield* serving(fleet, "two")
        assert.deepStrictEqual(bytesOf(weights), new Set([2]))
      })
    )
  )

  it.live("are refused with the reason: no memory to receive in, strided tensors, a replica that publishes", () =>
    run(
      Effect.gen(function* () {
        const weights = yield* allocate
        const base = { name: "x", rank: 1, role: "replica", weights, times, transport } as const
        assert.include((yield* Effect.flip(FleetLayer.make(base))).message, "no incoming tensors")
        const other = new Map([...weights].slice(1))
        assert.include((yield* Effect.flip(FleetLayer.make({ ...base, incoming: other }))).message, "same names")
        const strided = new Map([...weights].map(([name, tensor]) => [name, { ...tensor, shape: [9], strides: [2] }]))
        const refused = yield* Effect.flip(FleetLayer.make({ ...base, weights: strided, incoming: strided }))
        assert.include(refused.message, "strided")
        const fleet = yield* FleetLayer.make({ ...base, incoming: yield* allocate })
        assert.include((yield* Effect.flip(fleet.publish({ label: "x" }))).message, "Only a source")
        assert.include((yield* Effect.flip(fleet.use(() => Effect.void))).message, "NotServing")
      })
    )
  )
})
