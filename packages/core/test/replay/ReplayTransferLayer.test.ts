// SPDX-License-Identifier: Apache-2.0
/**
 * What the replay layer owes its devices and callers beyond slot states: copies prepared once, lists all or nothing,
 * deadlines, devices that take long or do not answer, and memory released behind copies.
 */
import { assert, describe, it } from "@effect/vitest"
import { type DelayedMode, makeDelayedReplayDevice } from "@tensorferry/testing/DelayedReplayDevice"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scheduler from "effect/Scheduler"
import * as Scope from "effect/Scope"
import * as TestClock from "effect/testing/TestClock"
import { type ReplayTransferLayerOptions, replayTransferLayer } from "../../src/replay/ReplayTransferLayer.ts"
import type { ReplayCopy, ReplayDevice } from "../../src/service/ReplayDevice.ts"
import {
  ReplayTransferBackend,
  type ReplayTransferError,
  type ReplayTransferReason,
  replayTransferError
} from "../../src/service/ReplayTransferBackend.ts"
import { tensorView } from "../../src/tensor/Tensor.ts"

const deadline = Duration.seconds(10)

const build = (device: ReplayDevice, options: Partial<ReplayTransferLayerOptions> = {}) =>
  Effect.gen(function* () {
    const layer = replayTransferLayer(Effect.succeed(device), { ringDepth: 2, deadline, ...options })
    return Context.get(yield* Layer.buildWithScope(layer, yield* Scope.Scope), ReplayTransferBackend)
  })

const host = (device: ReturnType<typeof makeDelayedReplayDevice>, length = 8) =>
  Effect.map(device.allocateHost(length), (storage) => Result.getOrThrow(tensorView(storage, "uint8", [length])))

/** A backend with a destination and a source. */
const setUp = (mode: DelayedMode, change: (device: ReplayDevice) => ReplayDevice = (device) => device) =>
  Effect.gen(function* () {
    const device = makeDelayedReplayDevice({ mode })
    const backend = yield* build(change(device))
    const [destination] = yield* backend.allocateDeviceSlots({ count: 1, shape: [8], dtype: "uint8" })
    return { device, backend, destination: destination!, source: yield* host(device) }
  })

const refused = <A, R>(tag: ReplayTransferReason["_tag"], effect: Effect.Effect<A, ReplayTransferError, R>) =>
  Effect.map(Effect.flip(effect), (error) => {
    assert.strictEqual(error.reason._tag, tag, error.message)
    return error
  })

/** Without giving way to any other fiber. */
const atOnce = <A, E>(work: Effect.Effect<A, E>): A => Effect.runSync(work)

const failure = replayTransferError("DeviceFailure", { detail: "The test has it fail.", remedy: "None." })

/** Changes every prepared copy. */
const withCopies =
  (change: (copy: ReplayCopy) => ReplayCopy) =>
  (device: ReplayDevice): ReplayDevice => ({
    ...device,
    prepare: (slot, destination, source) => Effect.map(device.prepare(slot, destination, source), change)
  })

describe("prepared copies", () => {
  it.live("are prepared once per pair, and again when registration changes", () =>
    Effect.gen(function* () {
      let prepared = 0
      const { device, backend, destination, source } = yield* setUp("synchronous", (honest) => ({
        ...honest,
        prepare: (slot, to, from) => {
          prepared += 1
          return honest.prepare(slot, to, from)
        }
      }))
      yield* Effect.forkScoped(device.finishAlways)
      const others = [yield* host(device), yield* host(device)]
      const submit = (from: typeof source, slot = 0) => backend.submitH2d({ slot, destination, source: from })
      const count = (expected: number) => assert.strictEqual(prepared, expected)
      yield* submit(source)
      yield* submit(source)
      count(1)
      for (let round = 0; round < 3; round++) for (const from of [source, ...others]) yield* submit(from)
      count(3)
      yield* submit({ ...source })
      count(4)
      yield* submit(source, 1)
      count(5)
      yield* Effect.scoped(
        Effect.andThen(backend.registerHostSlots([source]), Effect.andThen(submit(source), submit(source)))
      )
      count(6)
      yield* submit(source)
      count(7)
    }).pipe(Effect.scoped)
  )

  it.live("are not made for what is refused", () =>
    Effect.gen(function* () {
      const { backend, destination, source } = yield* setUp("asynchronous", (honest) => ({
        ...honest,
        prepare: () => Effect.fail(failure)
      }))
      const error = yield* refused("DeviceFailure", backend.submitH2d({ slot: 0, destination, source }))
      assert.strictEqual(error, failure)
      assert.strictEqual(yield* backend.slotState(0), "idle")
      assert.isFalse(yield* backend.isReady(0))
    }).pipe(Effect.scoped)
  )
})

describe("lists", () => {
  it.live("of device slots are allocated whole or not at all", () =>
    Effect.gen(function* () {
      const freed: Array<() => boolean> = []
      const { backend } = yield* setUp("asynchronous", (honest) => ({
        ...honest,
        allocate: (shape, dtype) =>
          freed.length === 3
            ? Effect.fail(failure)
            : Effect.tap(honest.allocate(shape, dtype), ({ storage }) =>
                Effect.sync(() => void freed.push(storage.isFreed))
              )
      }))
      yield* refused("DeviceFailure", backend.allocateDeviceSlots({ count: 3, shape: [4], dtype: "int8" }))
      assert.deepStrictEqual(
        freed.map((isFreed) => isFreed()),
        [false, true, true]
      )
      yield* refused("SlotOutOfRange", backend.allocateDeviceSlots({ count: -1, shape: [4], dtype: "int8" }))
      yield* refused("SlotOutOfRange", backend.allocateDeviceSlots({ count: 0.5, shape: [4], dtype: "int8" }))
      yield* refused("ShapeMismatch", backend.allocateDeviceSlots({ count: 1, shape: [-4], dtype: "int8" }))
      assert.deepStrictEqual(yield* backend.allocateDeviceSlots({ count: 0, shape: [4], dtype: "int8" }), [])
    }).pipe(Effect.scoped)
  )

  it.live("of host slots whose registration is interrupted leave nothing", () =>
    Effect.gen(function* () {
      const reached = yield* Deferred.make<void>()
      const { device, backend, source } = yield* setUp("asynchronous", (honest) => ({
        ...honest,
        register: (slot, index) =>
          index === 1
            ? Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)
            : honest.register(slot, index)
      }))
      const second = yield* host(device)
      const registering = yield* Effect.forkChild(backend.registerHostSlots([source, second]))
      yield* Deferred.await(reached)
      assert.strictEqual(device.registered(), 1)
      yield* Fiber.interrupt(registering)
      assert.strictEqual(device.registered(), 0)
    }).pipe(Effect.scoped)
  )
})

describe("waits", () => {
  it.live("that ended late do not end the next copy", () =>
    Effect.gen(function* () {
      const { device, backend, destination, source } = yield* setUp(
        "asynchronous",
        withCopies((copy) => ({ ...copy, wait: Effect.andThen(copy.wait, Effect.yieldNow) }))
      )
      const submission = { slot: 0, destination, source }
      yield* backend.submitH2d(submission)
      const waiting = yield* Effect.forkChild(backend.waitReady(0), { startImmediately: true })
      yield* Effect.yieldNow
      // All in one step, before the waiting fiber can go on.
      yield* Effect.sync(() => {
        atOnce(device.finishOne)
        assert.isTrue(atOnce(backend.isReady(0)))
        atOnce(backend.submitH2d(submission))
      })
      for (let turn = 0; turn < 20; turn++) yield* Effect.yieldNow
      assert.strictEqual(yield* backend.slotState(0), "submitted")
      assert.isUndefined(waiting.pollUnsafe())
      yield* device.finishOne
      yield* Fiber.join(waiting)
    }).pipe(Effect.scoped)
  )

  it.live("miss nothing that happens while they set out", () =>
    Effect.gen(function* () {
      for (let turns = 0; turns < 40; turns++) {
        const { device, backend, destination, source } = yield* setUp("asynchronous")
        // A fiber that gives way after every operation.
        const waiting = yield* Effect.forkChild(
          Effect.provideService(backend.waitReady(0), Scheduler.MaxOpsBeforeYield, 4)
        )
        for (let turn = 0; turn < turns; turn++) yield* Effect.yieldNow
        yield* Effect.sync(() => {
          atOnce(backend.submitH2d({ slot: 0, destination, source }))
          atOnce(device.finishOne)
          atOnce(backend.isReady(0))
        })
        yield* Effect.timeoutOrElse(Fiber.join(waiting), {
          duration: "2 seconds",
          orElse: () => Effect.die(`Not woken by what happened ${turns} turns after its start.`)
        })
      }
    }).pipe(Effect.scoped)
  )

  it.live("that made a copy which was cleared do not leave it behind when they are interrupted", () =>
    Effect.gen(function* () {
      const { device, backend, destination, source } = yield* setUp("deferred")
      yield* backend.submitH2d({ slot: 0, destination, source })
      const waiting = yield* Effect.forkChild(backend.waitReady(0), { startImmediately: true })
      yield* Effect.yieldNow
      assert.strictEqual(device.pending().length, 1)
      yield* backend.clearReady(0)
      assert.strictEqual(yield* backend.slotState(0), "deferred")
      yield* Fiber.interrupt(waiting)
      assert.strictEqual(yield* backend.slotState(0), "idle")
    }).pipe(Effect.scoped)
  )
})

describe("depths", () => {
  it.live("that make no sense make no slots", () =>
    Effect.gen(function* () {
      const device = makeDelayedReplayDevice({ mode: "asynchronous" })
      for (const ringDepth of [0, -1, 2.5, Number.NaN, 2 ** 40]) {
        const backend = yield* build(device, { ringDepth })
        const error = yield* refused("SlotOutOfRange", backend.isReady(0))
        assert.include(error.reason.detail, "has 0")
      }
    }).pipe(Effect.scoped)
  )
})

describe("deadlines", () => {
  it.effect("count from the last thing that happened to the slot", () =>
    Effect.gen(function* () {
      const { device, backend, destination, source } = yield* setUp("asynchronous")
      const waiting = yield* Effect.forkChild(backend.waitReady(1), { startImmediately: true })
      yield* TestClock.adjust("9 seconds")
      yield* backend.submitH2d({ slot: 1, destination, source })
      yield* TestClock.adjust("9 seconds")
      assert.isUndefined(waiting.pollUnsafe())
      const second = yield* Effect.forkChild(Effect.flip(backend.waitReady(1)), { startImmediately: true })
      yield* TestClock.adjust("1 seconds")
      const [exit] = [yield* Fiber.await(waiting)]
      assert.isTrue(Exit.isFailure(exit))
      assert.isUndefined(second.pollUnsafe())
      yield* TestClock.adjust("9 seconds")
      const late = yield* Fiber.join(second)
      assert.strictEqual(late.reason._tag, "DeadlineExceeded")
      assert.strictEqual(late.reason.slot, 1)
      assert.isTrue(late.reason.isRetryable)
      // The copy was left alone.
      assert.strictEqual(yield* backend.slotState(1), "submitted")
      yield* device.finishOne
      assert.isTrue(yield* backend.isReady(1))
    }).pipe(Effect.scoped)
  )

  it.effect("end submissions that make their copy, and keep what was recorded", () =>
    Effect.gen(function* () {
      const made = yield* setUp("synchronous")
      const submitting = yield* Effect.forkChild(
        Effect.flip(made.backend.submitH2d({ slot: 0, destination: made.destination, source: made.source })),
        { startImmediately: true }
      )
      yield* TestClock.adjust(deadline)
      assert.strictEqual((yield* Fiber.join(submitting)).reason._tag, "DeadlineExceeded")
      assert.strictEqual(yield* made.backend.slotState(0), "idle")
      assert.deepStrictEqual(made.device.pending(), [])

      const recorded = yield* setUp("deferred")
      yield* recorded.backend.submitH2d({ slot: 0, destination: recorded.destination, source: recorded.source })
      const waiting = yield* Effect.forkChild(Effect.flip(recorded.backend.waitReady(0)), { startImmediately: true })
      yield* TestClock.adjust(deadline)
      assert.strictEqual((yield* Fiber.join(waiting)).reason._tag, "DeadlineExceeded")
      assert.strictEqual(yield* recorded.backend.slotState(0), "deferred")
      yield* Effect.forkScoped(recorded.device.finishAlways)
      yield* recorded.backend.waitReady(0)
      assert.isTrue(yield* recorded.backend.isReady(0))
    }).pipe(Effect.scoped)
  )

  it.effect("let a backend close although its device does not answer", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const { backend, destination, source } = yield* Scope.provide(setUp("asynchronous"), scope)
      yield* backend.submitH2d({ slot: 0, destination, source })
      const closing = yield* Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
      for (let time = 0; time < 3; time++) {
        assert.isFalse(time === 0 && destination.storage.isFreed())
        yield* TestClock.adjust(deadline)
      }
      yield* Fiber.join(closing)
      assert.isTrue(destination.storage.isFreed())
    }).pipe(Effect.scoped)
  )
})

describe("devices", () => {
  it.live("may go on with a copy after its start has ended", () =>
    Effect.gen(function* () {
      let isDone = false
      const { backend, destination, source } = yield* setUp(
        "synchronous",
        withCopies((copy) => ({ ...copy, start: () => Effect.void, isDone: () => isDone }))
      )
      yield* backend.submitH2d({ slot: 0, destination, source })
      assert.strictEqual(yield* backend.slotState(0), "submitted")
      yield* refused("SlotBusy", backend.submitH2d({ slot: 0, destination, source }))
      isDone = true
      assert.isTrue(yield* backend.isReady(0))
      yield* backend.submitH2d({ slot: 0, destination, source })
    }).pipe(Effect.scoped)
  )

  it.live("may go on with a copy whose submission was interrupted; it does not count", () =>
    Effect.gen(function* () {
      let isDone = true
      const { backend, destination, source } = yield* setUp(
        "synchronous",
        withCopies((copy) => ({
          ...copy,
          start: () =>
            Effect.suspend(() => {
              isDone = false
              return Effect.never
            }),
          isDone: () => isDone
        }))
      )
      const submitting = yield* Effect.forkChild(backend.submitH2d({ slot: 0, destination, source }), {
        startImmediately: true
      })
      yield* Fiber.interrupt(submitting)
      assert.strictEqual(yield* backend.slotState(0), "submitted")
      yield* refused("SlotBusy", backend.submitH2d({ slot: 0, destination, source }))
      isDone = true
      assert.strictEqual(yield* backend.slotState(0), "idle")
      assert.isFalse(yield* backend.isReady(0))
    }).pipe(Effect.scoped)
  )

  it.live("report failures when started, when asked and when awaited", () =>
    Effect.gen(function* () {
      const starts = yield* setUp(
        "asynchronous",
        withCopies((copy) => ({ ...copy, start: () => Effect.fail(failure) }))
      )
      const submission = { slot: 0, destination: starts.destination, source: starts.source }
      assert.strictEqual(yield* refused("DeviceFailure", starts.backend.submitH2d(submission)), failure)
      assert.strictEqual(yield* refused("DeviceFailure", starts.backend.waitReady(0)), failure)

      for (const change of [
        (copy: ReplayCopy): ReplayCopy => ({ ...copy, isDone: () => failure }),
        (copy: ReplayCopy): ReplayCopy => ({ ...copy, isDone: () => false, wait: Effect.fail(failure) })
      ]) {
        const { backend, destination, source } = yield* setUp("asynchronous", withCopies(change))
        yield* backend.submitH2d({ slot: 0, destination, source })
        assert.strictEqual(yield* refused("DeviceFailure", backend.waitReady(0)), failure)
        assert.strictEqual(yield* refused("DeviceFailure", backend.waitCurrentStreamForReady(0)), failure)
        assert.strictEqual(yield* backend.slotState(0), "idle")
        yield* backend.clearReady(0)
        assert.isFalse(yield* backend.isReady(0))
      }
    }).pipe(Effect.scoped)
  )

  it.live("that break die loudly and leave the slot idle", () =>
    Effect.gen(function* () {
      const { backend, destination, source } = yield* setUp(
        "synchronous",
        withCopies((copy) => ({ ...copy, start: () => Effect.die("broken") }))
      )
      const exit = yield* Effect.exit(backend.submitH2d({ slot: 0, destination, source }))
      assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause))
      assert.strictEqual(yield* backend.slotState(0), "idle")
    }).pipe(Effect.scoped)
  )

  it.live("make streams wait only for copies that are under way, and report their time only afterwards", () =>
    Effect.gen(function* () {
      const asked: Array<string> = []
      const { device, backend, destination, source } = yield* setUp("asynchronous", (honest) => ({
        ...withCopies((copy) => ({
          ...copy,
          streamWait: (stream) => Effect.sync(() => void asked.push(String(stream?.handle))),
          seconds: () => 0.25
        }))(honest),
        attributes: () => ({ ...honest.attributes(), supportsTimingEvents: true })
      }))
      assert.isUndefined(yield* backend.copySeconds(0))
      yield* backend.submitH2d({ slot: 0, destination, source })
      yield* backend.waitCurrentStreamForReady(0)
      yield* backend.waitCurrentStreamForReady(0, { device: destination.device, handle: 7n })
      assert.isUndefined(yield* backend.copySeconds(0))
      yield* device.finishOne
      yield* backend.waitCurrentStreamForReady(0)
      assert.deepStrictEqual(asked, ["undefined", "7"])
      assert.strictEqual(yield* backend.copySeconds(0), 0.25)
      yield* backend.clearReady(0)
      assert.strictEqual(yield* backend.copySeconds(0), 0.25)
    }).pipe(Effect.scoped)
  )
})
