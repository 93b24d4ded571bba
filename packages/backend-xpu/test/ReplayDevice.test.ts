// SPDX-License-Identifier: Apache-2.0
/**
 * Replay slots over both drivers: bytes only after ready while the queue is held back, waits of streams, memory that goes
 * away, closing, failures with the driver's own words.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { lackOf, simulator, subjects, titleOf } from "./simulator.ts"
import {
  assertBytes,
  failureOf,
  holdQueue,
  hostTensor,
  isPoison,
  openReplay,
  pattern,
  type Rig,
  setPoison,
  turns,
  withRig
} from "./support.ts"

const length = 70_001

/** A slot on the device, and bytes on the host to fill it with. */
const slotAndSource = ({ replay, engine }: Pick<Rig, "replay" | "engine">, bytes: number, seed: number) =>
  Effect.gen(function* () {
    const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [bytes], dtype: "uint8" })
    return [slot!, yield* hostTensor(engine, pattern(bytes, seed))] as const
  })

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    it.live("a held queue: nothing arrives and nothing is ready before the release", () =>
      withRig(subject, (rig) =>
        Effect.gen(function* () {
          const { replay, engine } = rig
          const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [length], dtype: "uint8" })
          const bytes = new Uint8Array(length)
          const source = yield* hostTensor(engine, bytes)
          for (let round = 0; round < 3; round++) {
            bytes.set(pattern(length, round))
            setPoison(slot!)
            const hold = yield* holdQueue(rig)
            yield* replay.submitH2d({ slot: 0, destination: slot!, source })
            const waiter = yield* Effect.forkChild(replay.waitReady(0), { startImmediately: true })
            yield* turns()
            assert.strictEqual(yield* replay.slotState(0), "submitted")
            assert.isUndefined(waiter.pollUnsafe())
            assert.isTrue(isPoison(slot!))
            yield* hold.release
            yield* Fiber.join(waiter)
            assert.isTrue(yield* replay.isReady(0))
            assertBytes(slot!, pattern(length, round))
            yield* replay.clearReady(0)
          }
        })
      )
    )

    it.live("the engine's queue waits on the device, another stream by the host", () =>
      withRig(subject, (rig) =>
        Effect.gen(function* () {
          const { replay, engine, xpu } = rig
          const [slot, result] = yield* replay.allocateDeviceSlots({ count: 2, shape: [length], dtype: "uint8" })
          const bytes = new Uint8Array(length)
          const source = yield* hostTensor(engine, bytes)
          for (let round = 0; round < 4; round++) {
            bytes.set(pattern(length, round))
            setPoison(slot!)
            setPoison(result!)
            const hold = yield* holdQueue(rig)
            yield* replay.submitH2d({ slot: 0, destination: slot!, source })
            const copied = engine.copy([{ dst: result!, src: slot! }])
            // The first ends at once and the copy behind it waits; the second waits itself.
            const wait = replay.waitCurrentStreamForReady(
              0,
              round % 2 === 0 ? undefined : { device: xpu.device, handle: 77n }
            )
            const waiting = yield* Effect.forkChild(wait, { startImmediately: true })
            yield* turns()
            assert.strictEqual(waiting.pollUnsafe() !== undefined, round % 2 === 0)
            const copying = yield* Effect.forkChild(Effect.andThen(Fiber.join(waiting), copied), {
              startImmediately: true
            })
            yield* turns()
            assert.isUndefined(copying.pollUnsafe())
            assert.isTrue(isPoison(result!))
            yield* hold.release
            yield* Fiber.join(copying)
            assertBytes(result!, pattern(length, round))
            yield* replay.waitReady(0)
            yield* replay.clearReady(0)
          }
        })
      )
    )

    it.live("memory of a device slot that is freed under a copy goes back only behind it", () =>
      withRig(subject, (rig) =>
        Effect.gen(function* () {
          const { replay, engine } = rig
          const source = yield* hostTensor(engine, pattern(length, 1))
          const scope = yield* Scope.make()
          const freed = yield* Scope.provide(engine.allocate("uint8", [length]), scope)
          const hold = yield* holdQueue(rig)
          yield* replay.submitH2d({ slot: 0, destination: freed, source })
          yield* Scope.close(scope, Exit.void)
          yield* turns()
          const next = yield* engine.allocate("uint8", [length])
          setPoison(next)
          assert.notStrictEqual(next.storage.address, freed.storage.address)
          yield* hold.release
          yield* replay.waitReady(0)
          assert.isTrue(isPoison(next))
          // What comes to lie where the freed slot was gets bytes of its own.
          for (let round = 0; round < 5; round++) {
            yield* Effect.scoped(
              Effect.gen(function* () {
                const again = yield* engine.allocate("uint8", [length])
                const other = yield* hostTensor(engine, pattern(length, 10 + round))
                yield* replay.clearReady(0)
                yield* replay.submitH2d({ slot: 0, destination: again, source: other })
                yield* replay.waitReady(0)
                assertBytes(again, pattern(length, 10 + round))
              })
            )
          }
        })
      )
    )

    it.live("a source that is freed or transferred away is refused, before and during its copy", () =>
      withRig(subject, (rig) =>
        Effect.gen(function* () {
          const { replay, engine } = rig
          const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [length], dtype: "uint8" })
          const scope = yield* Scope.make()
          const source = yield* Scope.provide(hostTensor(engine, pattern(length, 1)), scope)
          const hold = yield* holdQueue(rig)
          yield* replay.submitH2d({ slot: 0, destination: slot!, source })
          yield* Scope.close(scope, Exit.void)
          yield* hold.release
          assert.strictEqual((yield* failureOf(replay.waitReady(0)))._tag, "FreedStorage")
          const bytes = pattern(length, 2)
          const other = yield* hostTensor(engine, bytes)
          yield* replay.submitH2d({ slot: 0, destination: slot!, source: other })
          yield* replay.waitReady(0)
          structuredClone(bytes, { transfer: [bytes.buffer as ArrayBuffer] })
          const gone = yield* failureOf(replay.submitH2d({ slot: 0, destination: slot!, source: other }))
          assert.strictEqual(gone._tag, "FreedStorage")
          assert.strictEqual(gone.slot, 0)
        })
      )
    )

    it.live("closing in the middle of copies ends them and gives everything back", () =>
      Effect.gen(function* () {
        for (let round = 0; round < 3; round++) {
          yield* withRig(subject, ({ replay, engine }) =>
            Effect.gen(function* () {
              const slots = yield* replay.allocateDeviceSlots({ count: 2, shape: [500_000], dtype: "uint8" })
              const source = yield* hostTensor(engine, pattern(500_000, round))
              yield* Effect.forEach(slots, (destination, slot) => replay.submitH2d({ slot, destination, source }))
            })
          )
        }
      })
    )

    it.live("a closing device releases what is held, and waits of others fail", () =>
      Effect.gen(function* () {
        const fiber = yield* withRig(subject, (rig) =>
          Effect.gen(function* () {
            const hold = rig.addon.holdQueue(rig.xpu.native, 0)
            assert.strictEqual(hold.code, "Ok")
            const replay = yield* openReplay(rig.options, 1, Duration.millis(300))
            const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [64], dtype: "uint8" })
            const source = yield* hostTensor(rig.engine, pattern(64, 1))
            yield* replay.submitH2d({ slot: 0, destination: slot!, source })
            assert.strictEqual((yield* failureOf(replay.waitReady(0)))._tag, "DeadlineExceeded")
            return yield* Effect.forkDetach(replay.waitReady(0), { startImmediately: true })
          })
        )
        assert.isTrue(Exit.isFailure(yield* Fiber.await(fiber)))
      })
    )

    it.live("memory of others is refused with the device's name", () =>
      withRig(subject, ({ replay, engine, xpu }) =>
        Effect.gen(function* () {
          const [slot, source] = yield* slotAndSource({ replay, engine }, 8, 1)
          const foreign = { ...slot!, storage: { ...slot!.storage, sharing: undefined } }
          const refused = yield* failureOf(replay.submitH2d({ slot: 1, destination: foreign, source }))
          assert.deepInclude(refused, { _tag: "DeviceMismatch", slot: 1, backend: "xpu" })
          const lying = { ...source, storage: { ...source.storage, address: source.storage.address + 1n } }
          const lied = yield* failureOf(replay.submitH2d({ slot: 1, destination: slot!, source: lying }))
          assert.deepInclude(lied, { _tag: "DeviceMismatch", slot: 1 })
          assert.deepStrictEqual(yield* replay.attributes, {
            device: xpu.device,
            deviceFamily: "xpu",
            h2dSubmitter: "xpu_copy_stream",
            hostMemoryKind: "pageable_shared",
            hostPinned: false,
            directPinnedShared: false,
            supportsAsyncSubmit: true,
            supportsTimingEvents: false
          })
        })
      )
    )

    it.live("without any of the optional capabilities everything still works, and says so", () =>
      withRig(
        subject,
        ({ replay, engine, xpu }) =>
          Effect.gen(function* () {
            assert.deepInclude(xpu.capabilities, { pinnedHost: false, timingEvents: false, hostPointerImport: false })
            const source = yield* hostTensor(engine, pattern(length, 4))
            yield* replay.registerHostSlots([source])
            assert.isFalse((yield* replay.attributes).supportsTimingEvents)
            const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [length], dtype: "uint8" })
            yield* replay.submitH2d({ slot: 0, destination: slot!, source })
            yield* replay.waitReady(0)
            assertBytes(slot!, pattern(length, 4))
            assert.isUndefined(yield* replay.copySeconds(0))
            // Through staging memory, of which none is pinned.
            const strided = { ...slot!, shape: [length >> 1], strides: [2] }
            const half = yield* hostTensor(engine, new Uint8Array(length >> 1))
            yield* engine.copy([{ dst: half, src: strided }])
            assert.deepStrictEqual(
              Uint8Array.from(half.storage.bytes!),
              pattern(length, 4).filter((_, at) => at % 2 === 0 && at < (length >> 1) * 2)
            )
          }),
        subject === "level-zero"
          ? { settings: "timestamps=0 import=0 hostmemory=0", timing: true }
          : { forbid: ["pinnedHost", "timingEvents", "hostPointerImport"], timing: true }
      )
    )

    it.live("reports how long copies took on the device, on request", () =>
      withRig(
        subject,
        ({ replay, engine }) =>
          Effect.gen(function* () {
            assert.isTrue((yield* replay.attributes).supportsTimingEvents)
            const [slot, source] = yield* slotAndSource({ replay, engine }, length, 4)
            assert.isUndefined(yield* replay.copySeconds(0))
            for (let round = 0; round < 3; round++) {
              yield* replay.submitH2d({ slot: 0, destination: slot!, source })
              yield* replay.waitReady(0)
              const seconds = yield* replay.copySeconds(0)
              // A counter of 32 bits at 8 ns ends after 34 s: what wraps would be that long, or negative.
              assert.isTrue(seconds !== undefined && seconds >= 0 && seconds < 30, String(seconds))
            }
          }),
        { timing: true }
      )
    )
  })
}

describe.skipIf(lackOf("opencl") !== undefined)(`failures of ${titleOf("opencl")}`, () => {
  it.live("a command that fails on the device is reported with its number", () =>
    withRig("opencl", (rig) =>
      Effect.gen(function* () {
        const { replay } = rig
        const [slot, source] = yield* slotAndSource(rig, 64, 1)
        const hold = yield* holdQueue(rig)
        yield* replay.submitH2d({ slot: 0, destination: slot!, source })
        yield* hold.fail
        const failure = yield* failureOf(replay.waitReady(0))
        assert.strictEqual(failure._tag, "DeviceFailure")
        assert.isBelow(failure.nativeCode ?? 0, 0)
        assert.include(failure.detail, "OpenCL")
      })
    )
  )
})

describe.skipIf(lackOf("level-zero") !== undefined)(`failures of ${titleOf("level-zero")}`, () => {
  it.live("a refused command is reported with its function, name and number, and the next works", () =>
    withRig("level-zero", ({ replay, engine }) =>
      Effect.gen(function* () {
        const [slot, source] = yield* slotAndSource({ replay, engine }, 64, 1)
        const submit = replay.submitH2d({ slot: 0, destination: slot!, source })
        simulator.configure("fail=zeCommandListAppendMemoryCopy:1:0x70000003")
        const failure = yield* failureOf(submit)
        assert.deepInclude(failure, { _tag: "DeviceFailure", slot: 0, nativeCode: 0x70000003 })
        assert.include(failure.detail, "zeCommandListAppendMemoryCopy")
        assert.include(failure.detail, "OUT_OF_DEVICE_MEMORY")
        yield* submit
        yield* replay.waitReady(0)
        assertBytes(slot!, pattern(64, 1))
      })
    )
  )

  it.live("a lost device fails waits and whatever comes after", () =>
    withRig("level-zero", (rig) =>
      Effect.gen(function* () {
        const { replay, engine } = rig
        const [slot, source] = yield* slotAndSource(rig, 64, 1)
        const hold = yield* holdQueue(rig)
        yield* replay.submitH2d({ slot: 0, destination: slot!, source })
        simulator.configure("lost=1")
        yield* hold.release
        const lost = yield* failureOf(replay.waitReady(0))
        assert.deepInclude(lost, { _tag: "DeviceFailure", nativeCode: 0x70000001 })
        const later = yield* failureOf(engine.fill(slot!, 1))
        assert.deepInclude(later, { _tag: "DeviceFailure", nativeCode: 0x70000001 })
      })
    )
  )

  it.live("a registration that fails in the middle leaves nothing imported, and can be repeated", () =>
    withRig("level-zero", ({ replay, engine }) =>
      Effect.gen(function* () {
        const slots = yield* Effect.forEach([1, 2, 3], (seed) => hostTensor(engine, pattern(length, seed)))
        simulator.configure("fail=zexDriverImportExternalPointer:2:0x70000002")
        const failure = yield* failureOf(replay.registerHostSlots(slots))
        assert.deepInclude(failure, { _tag: "RegistrationFailed", slot: 1, nativeCode: 0x70000002 })
        assert.strictEqual(simulator.report().live.imports, 0)
        yield* Effect.scoped(
          Effect.andThen(
            replay.registerHostSlots(slots),
            Effect.sync(() => assert.strictEqual(simulator.report().live.imports, 3))
          )
        )
        assert.strictEqual(simulator.report().live.imports, 0)
      })
    )
  )
})
