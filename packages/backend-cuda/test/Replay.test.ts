// SPDX-License-Identifier: Apache-2.0
/**
 * The replay backend over the simulated driver: right under many orders of the device's work, whatever is freed, closed or
 * refused meanwhile, and wrong as soon as one of its waits is left out.
 */

import { assert, describe, it } from "@effect/vitest"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { type Addon, replayAnswers } from "@tensorferry/gpu/Addon"
import { assertClean, resetSimulator, simulator, violations } from "@tensorferry/simulators/gpu"
import { makeEngine } from "@tensorferry/simulators/gpuEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import type { CudaOptions } from "../src/options.ts"
import { replayWay } from "../src/ReplayQueue.ts"
import { assertRegistered, bytesOf, hostSlot, openReplay, peek, poison, run, runDeepTicks, runTicks } from "./replay.ts"

const seeds = isSoak ? 1000 : 20
const page = 4096

const vendors: ReadonlyArray<readonly [string, CudaOptions]> = [
  ["under NVIDIA's names", {}],
  ["under AMD's names", { vendor: "rocm" }]
]

describe.each(vendors)("ticks %s", (_, options) => {
  it(`are right in ${seeds} orders`, { timeout: 60_000 + seeds * 1000 }, async () => {
    for (let seed = 1; seed <= seeds; seed++) {
      resetSimulator(`seed=${seed} query=${[0, 20, 50, 90][seed % 4]}`)
      assert.deepStrictEqual(await run(runTicks(seed, 12, undefined, options)), [], `seed ${seed}`)
      assertClean(`of seed ${seed}`)
    }
  })
})

describe("many copies under way", () => {
  it(`are right in ${seeds} orders`, { timeout: 60_000 + seeds * 1000 }, async () => {
    for (let seed = 1; seed <= seeds; seed++) {
      resetSimulator(`seed=${seed} query=${[0, 20, 50, 90][seed % 3]}`)
      assert.deepStrictEqual(await run(runDeepTicks(seed, 60)), [], `seed ${seed}`)
      assertClean(`of seed ${seed}`)
    }
  })
})

describe("a planted fault is found", () => {
  const answered = (value: number) => () => ({ code: "Ok" as const, value })
  const prepared =
    (spoil: (copy: { readonly start: () => number; readonly query: () => number }) => object) =>
    (addon: Addon): Addon => ({
      ...addon,
      prepareReplayCopy: (...request) => {
        const made = addon.prepareReplayCopy(...request)
        return made.code === "Ok" ? { ...made, value: { ...made.value, ...spoil(made.value) } } : made
      }
    })
  const faults: ReadonlyArray<readonly [string, (addon: Addon) => Addon]> = [
    [
      "streams do not wait for the event",
      (addon) => ({ ...addon, holdStream: () => ({ code: "Ok", value: undefined }) })
    ],
    ["a copy is called done without asking its event", prepared(() => ({ query: () => replayAnswers.ok }))],
    [
      "a wait does not wait",
      (addon) => ({
        ...addon,
        startReplayWait: (copy, done) => {
          const started = addon.startReplayWait(copy, () => undefined)
          setImmediate(() => done({ code: "Ok", value: undefined }))
          return started
        }
      })
    ],
    ["memory is given back while copies run", (addon) => ({ ...addon, replayQuery: answered(replayAnswers.ok) })]
  ]
  for (const [name, change] of faults) {
    it(name, { timeout: 60_000 }, async () => {
      let found: ReadonlyArray<string> = []
      for (let seed = 1; seed <= 60 && found.length === 0; seed++) {
        resetSimulator(`seed=${seed} query=20`)
        found = [...(await run(runTicks(seed, 12, change))), ...violations()]
      }
      assert.isNotEmpty(found)
    })
  }
})

describe("host slots", () => {
  it("are registered all or none, and say so", async () => {
    for (const failing of [1, 2, 3, 4]) {
      resetSimulator(`fail=cudaHostRegister:${failing}:2`)
      await run(
        Effect.gen(function* () {
          const { backend } = yield* openReplay(4)
          const slots = yield* Effect.forEach([1, 2, 3, 4], () => hostSlot(3 * page + 5))
          const pinned = Effect.map(backend.attributes, ({ hostPinned, directPinnedShared }) => [
            hostPinned,
            directPinnedShared
          ])
          const failure = yield* Effect.flip(Effect.scoped(backend.registerHostSlots(slots)))
          assert.strictEqual(failure.reason._tag, "RegistrationFailed")
          assert.strictEqual(failure.reason.slot, failing - 1)
          assert.strictEqual(failure.reason.nativeCode, 2)
          assertRegistered(0)
          assert.deepStrictEqual(yield* pinned, [false, false])
          yield* Effect.scoped(
            Effect.gen(function* () {
              yield* backend.registerHostSlots(slots)
              assert.deepStrictEqual(yield* pinned, [true, true])
            })
          )
          assertRegistered(0)
          assert.deepStrictEqual(yield* pinned, [false, false])
        })
      )
      assertClean()
    }
  })

  it("of one mapping that meet within a page are registered and copied each", async () => {
    resetSimulator("seed=3")
    await run(
      Effect.gen(function* () {
        const { backend } = yield* openReplay(3, undefined, {}, { ...replayWay, isTimed: true })
        const storage = yield* (yield* HostMemory).allocate(12 * page)
        const byteLength = 3 * page + 77
        const slots = [0, 1, 2].map((slot) =>
          Result.getOrThrow(tensorView(storage, "uint8", [byteLength], { byteOffset: slot * byteLength }))
        )
        yield* backend.registerHostSlots(slots)
        const devices = yield* backend.allocateDeviceSlots({ count: 3, shape: [byteLength], dtype: "uint8" })
        for (const [slot, source] of slots.entries()) {
          bytesOf(source).fill(slot + 1)
          poison(devices[slot]!)
          yield* backend.submitH2d({ slot, source, destination: devices[slot]! })
        }
        for (const slot of [0, 1, 2]) {
          yield* backend.waitReady(slot)
          assert.isTrue(peek(devices[slot]!).every((byte) => byte === slot + 1))
          assert.isAtLeast((yield* backend.copySeconds(slot)) ?? -1, 0)
        }
      })
    )
    assertClean()
  })

  it("may be freed during their copy: their owner waits for it", async () => {
    for (const byteLength of [page, 100 * page]) {
      for (const isRegistered of [true, false]) {
        for (let seed = 1; seed <= 5; seed++) {
          resetSimulator(`seed=${seed} query=20`)
          await run(
            Effect.gen(function* () {
              const { backend } = yield* openReplay(1)
              const owner = yield* Scope.make()
              const whole = yield* Scope.provide(hostSlot(4 * byteLength), owner)
              // A row in the middle: its address is not the one by which its memory is registered and given back.
              const source = Result.getOrThrow(
                tensorView(whole.storage, "uint8", [byteLength], { byteOffset: 2 * byteLength })
              )
              bytesOf(source).fill(9)
              if (isRegistered) yield* Scope.provide(backend.registerHostSlots([whole]), owner)
              const [destination] = yield* backend.allocateDeviceSlots({
                count: 1,
                shape: [byteLength],
                dtype: "uint8"
              })
              poison(destination!)
              const submitting = yield* Effect.forkChild(
                backend.submitH2d({ slot: 0, source, destination: destination! }),
                { startImmediately: true }
              )
              whole.storage.free()
              assertRegistered(0)
              // Whoever gets memory now overwrites it.
              bytesOf(yield* hostSlot(4 * byteLength)).fill(0)
              yield* Fiber.join(submitting)
              yield* backend.waitReady(0)
              assert.isTrue(peek(destination!).every((byte) => byte === 9))
              yield* Scope.close(owner, Exit.void)
            })
          )
          assertClean(`${byteLength} bytes, registered ${isRegistered}, seed ${seed}`)
        }
      }
    }
  })

  it("that an engine pins for a while stay pinned under a copy", async () => {
    for (let seed = 1; seed <= 10; seed++) {
      resetSimulator(`seed=${seed} query=20`)
      await run(
        Effect.gen(function* () {
          const { backend } = yield* openReplay(1)
          const { engine } = yield* makeEngine({ device: 0 })
          const source = yield* hostSlot(16 * page)
          bytesOf(source).fill(5)
          const [destination] = yield* backend.allocateDeviceSlots({ count: 1, shape: [16 * page], dtype: "uint8" })
          const target = yield* engine.allocate("uint8", [8, 4096])
          const strided = Result.getOrThrow(tensorView(source.storage, "uint8", [8, 4096], { strides: [8192, 1] }))
          const copying = yield* Effect.forkChild(engine.copy([{ dst: target, src: strided }]), {
            startImmediately: true
          })
          yield* backend.submitH2d({ slot: 0, source, destination: destination! })
          yield* Fiber.join(copying)
          yield* backend.waitReady(0)
          assert.isTrue(peek(destination!).every((byte) => byte === 5))
        })
      )
      assertClean(`of seed ${seed}`)
    }
  })
})

describe("device slots", () => {
  it("of an engine on the same device are filled, and kept until their copies have ended", async () => {
    for (let seed = 1; seed <= 10; seed++) {
      resetSimulator(`seed=${seed} query=10`)
      await run(
        Effect.gen(function* () {
          const { backend } = yield* openReplay(1)
          const source = yield* hostSlot(page)
          yield* backend.registerHostSlots([source])
          bytesOf(source).fill(5)
          const scope = yield* Scope.make()
          const { engine } = yield* Scope.provide(makeEngine({ device: 0 }), scope)
          const destination = yield* Scope.provide(engine.allocate("uint8", [page]), scope)
          yield* backend.submitH2d({ slot: 0, source, destination })
          // The engine ends, and its device is closed, while the copy is under way.
          yield* Scope.close(scope, Exit.void)
        })
      )
      assertClean(`of seed ${seed}`)
    }
  })

  it("of another device are refused", async () => {
    resetSimulator("seed=1")
    await run(
      Effect.gen(function* () {
        const { backend } = yield* openReplay(1)
        const { engine } = yield* makeEngine({ device: 1 })
        const source = yield* hostSlot(page)
        const destination = yield* engine.allocate("uint8", [page])
        for (const device of [destination.device, { family: "cuda", index: 0 }]) {
          const submitted = backend.submitH2d({ slot: 0, source, destination: { ...destination, device } })
          assert.strictEqual((yield* Effect.flip(submitted)).reason._tag, "DeviceMismatch")
        }
        assert.strictEqual(yield* backend.slotState(0), "idle")
      })
    )
    assertClean()
  })
})

describe("the end", () => {
  it("of a backend during copies waits for them", async () => {
    for (let seed = 1; seed <= 10; seed++) {
      resetSimulator(`seed=${seed} query=10`)
      await run(
        Effect.gen(function* () {
          const source = yield* hostSlot(page)
          const long = yield* hostSlot(100 * page)
          yield* Effect.scoped(
            Effect.gen(function* () {
              const { backend } = yield* openReplay(2)
              if (seed % 2 === 0) yield* backend.registerHostSlots([source])
              const [destination] = yield* backend.allocateDeviceSlots({ count: 1, shape: [page], dtype: "uint8" })
              const [other] = yield* backend.allocateDeviceSlots({ count: 1, shape: [100 * page], dtype: "uint8" })
              yield* backend.submitH2d({ slot: 0, source, destination: destination! })
              const submission = backend.submitH2d({ slot: 1, source: long, destination: other! })
              const forked = yield* Effect.forkChild(submission, { startImmediately: true })
              if (seed % 3 === 0) yield* Fiber.interrupt(forked)
            })
          )
          assertRegistered(0)
        })
      )
      assertClean(`of seed ${seed}`)
    }
  })

  it("of a wait by interruption leaves the copy alone", async () => {
    resetSimulator("seed=5 stall=cudaMemcpyAsync:1")
    await run(
      Effect.gen(function* () {
        const { backend } = yield* openReplay(1)
        const source = yield* hostSlot(page)
        bytesOf(source).fill(3)
        const [destination] = yield* backend.allocateDeviceSlots({ count: 1, shape: [page], dtype: "uint8" })
        yield* backend.submitH2d({ slot: 0, source, destination: destination! })
        const waiting = yield* Effect.forkChild(backend.waitReady(0), { startImmediately: true })
        yield* Fiber.interrupt(waiting)
        assert.strictEqual(yield* backend.slotState(0), "submitted")
        const again = yield* Effect.flip(backend.submitH2d({ slot: 0, source, destination: destination! }))
        assert.strictEqual(again.reason._tag, "SlotBusy")
        simulator.configure("release=stalls")
        yield* backend.waitReady(0)
        assert.isTrue(peek(destination!).every((byte) => byte === 3))
      })
    )
    assertClean()
  })

  it("of the device is reported by the copy that met it", async () => {
    resetSimulator("seed=2 late=cudaMemcpyAsync:1:700")
    const reason = await run(
      Effect.gen(function* () {
        const { backend } = yield* openReplay(1)
        const source = yield* hostSlot(page)
        const [destination] = yield* backend.allocateDeviceSlots({ count: 1, shape: [page], dtype: "uint8" })
        // The device may break before the event behind the copy is queued.
        const submitted = backend.submitH2d({ slot: 0, source, destination: destination! })
        return (yield* Effect.flip(Effect.andThen(submitted, backend.waitReady(0)))).reason
      })
    )
    assert.deepStrictEqual([reason._tag, reason.nativeCode, reason.slot], ["DeviceFailure", 700, 0])
    resetSimulator("")
  })
})

describe("many ticks", () => {
  const ticks = isSoak ? 10_000 : 300
  it(`(${ticks}) leave nothing behind`, { timeout: 120_000 }, async () => {
    resetSimulator("seed=11 query=80")
    await run(
      Effect.gen(function* () {
        const { backend } = yield* openReplay(2)
        const sources = [yield* hostSlot(page), yield* hostSlot(page)]
        yield* backend.registerHostSlots(sources)
        const devices = yield* backend.allocateDeviceSlots({ count: 2, shape: [page], dtype: "uint8" })
        const before = simulator.report().live
        for (let tick = 0; tick < ticks; tick++) {
          const slot = tick % 2
          bytesOf(sources[slot]!).fill(tick)
          yield* backend.submitH2d({ slot, source: sources[slot]!, destination: devices[slot]! })
          yield* backend.waitReady(slot)
          assert.strictEqual(peek(devices[slot]!)[page - 1], tick & 0xff)
          yield* backend.clearReady(slot)
        }
        assert.deepStrictEqual(simulator.report().live, before)
        assert.strictEqual(simulator.report().calls.cudaMemcpyAsync, ticks)
      })
    )
    assertClean()
  })
})
