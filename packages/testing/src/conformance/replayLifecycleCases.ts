// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of a backend's life: what it says of itself, how it ends, and what many ticks leave behind.
 */
import type { ReplayTransferAttributes } from "@tensorferry/core/service/ReplayTransferBackend"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { collectGarbage } from "../machine/collectGarbage.ts"
import { check, checkEqual, expectFailure } from "./Case.ts"
import { setPoison } from "./memory.ts"
import { ReplaySubject } from "./ReplaySubject.ts"
import {
  build,
  deviceSlots,
  eventually,
  expectCloseWaits,
  expectSlot,
  fillHost,
  hostSlot,
  isDeferred,
  needsHold,
  type ReplayCase,
  replayCase,
  submitHeld
} from "./replayCase.ts"

/** What each kind of submitter states; timing is free where it is not given. */
const table: Record<
  ReplayTransferAttributes["h2dSubmitter"],
  Pick<ReplayTransferAttributes, "hostMemoryKind" | "supportsAsyncSubmit"> & {
    readonly pins: boolean
    readonly timing?: boolean
  }
> = {
  native_copy_stream: { hostMemoryKind: "registered_pinned_shared", supportsAsyncSubmit: true, pins: true },
  xpu_copy_stream: { hostMemoryKind: "pageable_shared", supportsAsyncSubmit: true, pins: false },
  torch_copy: { hostMemoryKind: "pageable_shared", supportsAsyncSubmit: false, pins: false, timing: false },
  torch_copy_deferred: { hostMemoryKind: "pageable_shared", supportsAsyncSubmit: false, pins: false, timing: false },
  device_ring: { hostMemoryKind: "device", supportsAsyncSubmit: false, pins: false }
}

const attributesCase = replayCase(
  "attributes are those of its kind, before and after registration",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const slots = yield* Effect.forEach([0, 1], () => hostSlot([5000]))
    const expectRow = Effect.fnUntraced(function* (when: string, isRegistered: boolean) {
      const stated = yield* backend.attributes
      const row = table[stated.h2dSubmitter]
      yield* checkEqual(`${when}: deviceFamily`, stated.deviceFamily, stated.device.family)
      yield* checkEqual(`${when}: hostMemoryKind`, stated.hostMemoryKind, row.hostMemoryKind)
      yield* checkEqual(`${when}: supportsAsyncSubmit`, stated.supportsAsyncSubmit, row.supportsAsyncSubmit)
      yield* checkEqual(`${when}: hostPinned`, stated.hostPinned, row.pins && isRegistered)
      yield* checkEqual(`${when}: directPinnedShared`, stated.directPinnedShared, row.pins && isRegistered)
      if (row.timing !== undefined) {
        yield* checkEqual(`${when}: supportsTimingEvents`, stated.supportsTimingEvents, row.timing)
      }
    })
    yield* expectRow("Before registration", false)
    yield* Effect.scoped(
      Effect.andThen(backend.registerHostSlots(slots), expectRow("While slots are registered", true))
    )
    yield* expectRow("After registration", false)
  })
)

const submitBoth = Effect.fnUntraced(function* (seed: number) {
  const backend = yield* build(1)
  const [slot] = yield* deviceSlots(backend, 1, [3000])
  const source = yield* hostSlot([3000])
  const bytes = yield* fillHost(source, seed)
  yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
  yield* backend.waitReady(0)
  yield* expectSlot(`Backend ${seed}`, slot!, bytes)
})

const builtAgain = replayCase(
  "backends are built again, and several are open together",
  Effect.gen(function* () {
    for (let seed = 0; seed < 3; seed++) yield* Effect.scoped(submitBoth(seed))
    yield* Effect.forEach([1, 2, 3], submitBoth, { concurrency: "unbounded" })
  })
)

const closeDuring = replayCase(
  "closing waits for the copies that are under way",
  Effect.gen(function* () {
    const outer = yield* Scope.fork(yield* Scope.Scope)
    const backend = yield* Scope.provide(build(2), outer)
    const [slot] = yield* Scope.provide(deviceSlots(backend, 1, [60_000]), outer)
    const source = yield* hostSlot([60_000])
    yield* fillHost(source, 1)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    yield* expectCloseWaits(outer, slot!, held.release)
    yield* check(slot!.whole.storage.isFreed(), () => "Closing left the device slot allocated.")
    // What is allocated now lies where the slot was; nothing may write there any more.
    yield* Effect.scoped(submitBoth(2))
  }),
  needsHold
)

const closeAtOnce = replayCase(
  "a backend that was closed refuses, and lets go of everything",
  Effect.gen(function* () {
    const { registered } = yield* ReplaySubject
    const before = registered?.()
    for (let round = 0; round < 4; round++) {
      const scope = yield* Scope.fork(yield* Scope.Scope)
      const backend = yield* Scope.provide(build(2), scope)
      const [slot] = yield* Scope.provide(deviceSlots(backend, 1, [2_000_000]), scope)
      const source = yield* Scope.provide(hostSlot([2_000_000]), scope)
      yield* fillHost(source, round)
      if (round % 2 === 1) yield* Scope.provide(backend.registerHostSlots([source]), scope)
      yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
      const waiter = yield* Effect.forkScoped(Effect.result(backend.waitReady(1)), { startImmediately: true })
      yield* Scope.close(scope, Exit.void)
      yield* checkEqual("Registered slots after closing", registered?.(), before)
      yield* eventually(
        "The end of a wait",
        Effect.sync(() => waiter.pollUnsafe() !== undefined)
      )
      const kept = yield* hostSlot([2_000_000])
      yield* expectFailure(
        "Submitting after the end",
        backend.submitH2d({ slot: 1, destination: slot!.tensor, source: kept }),
        ["DeviceFailure", "FreedStorage"]
      )
      yield* expectFailure("Waiting after the end", backend.waitReady(1), ["DeviceFailure"])
      yield* expectFailure("Registering after the end", Effect.scoped(backend.registerHostSlots([kept])), [
        "DeviceFailure"
      ])
    }
  })
)

/** Bytes in use once all garbage is gone. */
const usedBytes = Effect.sync(() => {
  collectGarbage()
  const { heapUsed, external } = process.memoryUsage()
  return heapUsed + external
})

/** The median of the slopes between all pairs of samples (Theil and Sen). */
const slopeOf = (samples: ReadonlyArray<number>): number => {
  const slopes: Array<number> = []
  for (let i = 0; i < samples.length; i++) {
    for (let j = i + 1; j < samples.length; j++) slopes.push((samples[j]! - samples[i]!) / (j - i))
  }
  return slopes.sort((a, b) => a - b)[slopes.length >> 1] ?? 0
}

const ticks = replayCase(
  "many ticks leave nothing behind",
  Effect.gen(function* () {
    const subject = yield* ReplaySubject
    const count = subject.ticks ?? 300
    const ringDepth = 3
    const backend = yield* build(ringDepth)
    const isWaitNeeded = isDeferred(yield* backend.attributes)
    const length = 4096
    const slots = yield* deviceSlots(backend, ringDepth, [length])
    const sources = yield* Effect.forEach(slots, () => hostSlot([length]))
    yield* backend.registerHostSlots(sources)
    const block = Math.ceil(count / 8)
    const samples: Array<number> = []
    for (let tick = 0; tick < count; tick++) {
      const slot = tick % ringDepth
      const source = sources[slot]!
      // The pair is known to the slot most of the time, and now and then it is another one.
      const destination = slots[tick % 97 === 0 ? (slot + 1) % ringDepth : slot]!
      const isJudged = tick % block === 0 || tick === count - 1
      if (isJudged) yield* setPoison(destination)
      source.storage.bytes![source.byteOffset + (tick % length)] = tick & 0xff
      const bytes = isJudged ? yield* fillHost(source, tick) : undefined
      yield* backend.submitH2d({ slot, destination: destination.tensor, source })
      if (tick % 2 === 0 || isWaitNeeded) yield* backend.waitReady(slot)
      else yield* Effect.andThen(backend.waitCurrentStreamForReady(slot), backend.waitReady(slot))
      yield* checkEqual(`Slot ${slot} is ready in tick ${tick}`, yield* backend.isReady(slot), true)
      if (bytes !== undefined) {
        yield* expectSlot(`Tick ${tick}`, destination, bytes)
        samples.push(yield* usedBytes)
      }
      yield* backend.clearReady(slot)
    }
    // Caches and compilers settle in the first part.
    const perTick = slopeOf(samples.slice(samples.length >> 2)) / block
    const limit = count >= 5000 ? 256 : 16_384
    yield* check(perTick < limit, () => `Memory in use grows by ${Math.round(perTick)} bytes per tick: ${samples}.`)
  })
)

/** A backend's slots from their first copy to its end. */
export const replayLifecycleCases: ReadonlyArray<ReplayCase> = [
  attributesCase,
  builtAgain,
  closeDuring,
  closeAtOnce,
  ticks
]
