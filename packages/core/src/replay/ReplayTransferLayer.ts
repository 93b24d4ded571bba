// SPDX-License-Identifier: Apache-2.0
/**
 * `ReplayTransferBackend` over a device: the slots' states, the checks, the waits and their deadlines, once for all
 * backends. A backend's author writes a `ReplayDevice`.
 *
 * Invariants: a warm submission (a pair of tensors that its slot knows) is one Effect around one call into the device.
 * Memory that the layer allocated or registered is released only behind the copies that use it, and the device is closed
 * only behind all copies, unless the device does not answer within the deadline.
 */
import { availableParallelism } from "node:os"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as EffectScope from "effect/Scope"
import { bitsOf } from "../base/DType.ts"
import { formatShape, isRepresentable } from "../base/Region.ts"
import { defaultBusyPollMillis } from "../service/BusyPolling.ts"
import type { ReplayDevice } from "../service/ReplayDevice.ts"
import {
  ReplayTransferBackend,
  type ReplayTransferBackendShape,
  type ReplayTransferError
} from "../service/ReplayTransferBackend.ts"
import { equalDevices, formatDevice } from "../tensor/Device.ts"
import { makeRefusals, makeReplayChecks } from "./internal/checks.ts"
import { makeDraining } from "./internal/draining.ts"
import type { BackendRing } from "./internal/ring.ts"
import { clear, isBusy, makeSlot, type ReplaySlot, settle, stateOf, wake } from "./internal/slot.ts"
import { makeSubmission } from "./internal/submission.ts"
import { makeWaiting } from "./internal/waiting.ts"

/** Ring and deadline of a replay backend. */
export interface ReplayTransferLayerOptions {
  /** Slots, numbered from 0; 1 to `maxRingDepth`. Any other depth makes none: every use is SlotOutOfRange. */
  readonly ringDepth: number
  /** A wait in which nothing happens for so long fails; by default what `ReplayTransferDeadline` says. */
  readonly deadline?: Duration.Duration
  /** Name of the backend in errors. */
  readonly backend?: string
}

/** Whether a ring can have so many slots: a whole number from 1 to `maxRingDepth`. */
export const isRingDepth = (depth: number): boolean => Number.isInteger(depth) && depth >= 1 && depth <= maxRingDepth

type Doing<A> = Effect.Effect<A, ReplayTransferError>

/** The deadline of waits, read when a backend is built: one setting for the backends of all device families. */
export const ReplayTransferDeadline = Context.Reference<Duration.Duration>(
  "@tensorferry/core/service/ReplayTransferLayer/ReplayTransferDeadline",
  { defaultValue: () => Duration.seconds(60) }
)

/**
 * Whether devices keep the time of each copy, which costs a little of the link and of every submission; read when a backend
 * is built, by backends that can.
 */
export const ReplayTransferTiming = Context.Reference<boolean>(
  "@tensorferry/core/service/ReplayTransferLayer/ReplayTransferTiming",
  { defaultValue: () => false }
)

/**
 * For so long a wait for a copy keeps asking the device on the JavaScript thread, which uses one core; after that, a thread
 * of the backend waits. 100 ms by default where the host has eight cores, else zero. Read when a backend is built.
 */
export const ReplayTransferBusyPoll = Context.Reference<Duration.Duration>(
  "@tensorferry/core/service/ReplayTransferLayer/ReplayTransferBusyPoll",
  { defaultValue: () => Duration.millis(defaultBusyPollMillis(availableParallelism(), 2)) }
)

/** Slots that a ring may have. */
export const maxRingDepth = 65_536

const makeBackend = Effect.fnUntraced(function* (
  device: ReplayDevice,
  options: ReplayTransferLayerOptions
): Effect.fn.Return<ReplayTransferBackendShape, never, EffectScope.Scope> {
  const { ringDepth, backend } = options
  const deadline = options.deadline ?? (yield* ReplayTransferDeadline)
  const pollMillis = Duration.toMillis(yield* ReplayTransferBusyPoll)
  const isDeferred = device.isDeferred ?? false
  const { device: target } = device.attributes()
  const depth = isRingDepth(ringDepth) ? ringDepth : 0
  const slots: ReadonlyArray<ReplaySlot> = Array.from({ length: depth }, (_, index) => makeSlot(index))
  const refusals = makeRefusals(backend, target, depth)
  const checks = makeReplayChecks(refusals, target, device.origin)
  const ring: BackendRing = {
    device,
    target,
    slots,
    refusals,
    checks,
    deadline,
    isDeferred,
    pollMillis,
    isClosed: false
  }
  const submission = makeSubmission(ring)
  const { awaitCopy, waitReady } = makeWaiting(ring, submission)
  const { drain, drainStorages } = makeDraining(ring)

  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      ring.isClosed = true
      for (const slot of slots) wake(slot)
      return drain(() => true)
    })
  )

  const ofSlot = <A>(op: string, index: number, work: (slot: ReplaySlot) => Doing<A>): Doing<A> =>
    Effect.suspend(() => {
      const slot = slots[index]
      return slot === undefined ? Effect.fail(refusals.outOfRange(op, index)) : work(slot)
    })

  const forgetCopies = Effect.sync(() => {
    for (const slot of slots) slot.known = []
  })

  /** Does it in a scope of its own that is closed at once where not all of it succeeds. */
  const allOrNothing = <A>(work: Effect.Effect<A, ReplayTransferError, EffectScope.Scope>) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const scope = yield* EffectScope.fork(yield* EffectScope.Scope)
        return yield* Effect.onExit(restore(EffectScope.provide(work, scope)), (exit) =>
          Exit.isSuccess(exit) ? Effect.void : EffectScope.close(scope, exit)
        )
      })
    )

  return {
    attributes: Effect.sync(device.attributes),
    registerHostSlots: (list) =>
      allOrNothing(
        Effect.gen(function* () {
          if (ring.isClosed) return yield* refusals.closed("registerHostSlots")
          const objection = checks.hostSlots(list)
          if (objection !== undefined) return yield* objection
          // Last of all: what was prepared with registered memory is prepared again.
          yield* Effect.addFinalizer(() => forgetCopies)
          for (const [index, slot] of list.entries()) yield* device.register(slot, index)
          yield* Effect.addFinalizer(() => drainStorages(new Set(list.map(({ storage }) => storage))))
          yield* forgetCopies
        })
      ),
    allocateDeviceSlots: ({ count, shape, dtype }) =>
      allOrNothing(
        Effect.gen(function* () {
          const op = "allocateDeviceSlots"
          if (ring.isClosed) return yield* refusals.closed(op)
          if (!Number.isSafeInteger(count) || count < 0) {
            return yield* refusals.refuse("SlotOutOfRange", op, `Invalid count ${count}.`, "Ask for 0 or more.")
          }
          if (!isRepresentable(shape, bitsOf(dtype))) {
            const what = `The shape ${formatShape(shape)} of ${dtype} is not of natural numbers, or exceeds 2^53 bits.`
            return yield* refusals.refuse("ShapeMismatch", op, what, "Correct the shape.")
          }
          const tensors = yield* Effect.forEach(Array.from({ length: count }), () => device.allocate(shape, dtype))
          yield* Effect.addFinalizer(() => drainStorages(new Set(tensors.map(({ storage }) => storage))))
          return tensors
        })
      ),
    submitH2d: (pair) => Effect.suspend(() => submission.submit(pair, performance.now())),
    slotState: (index) =>
      ofSlot("slotState", index, (slot) => {
        settle(slot)
        return Effect.succeed(stateOf(slot, isDeferred))
      }),
    isReady: (index) =>
      ofSlot("isReady", index, (slot) => {
        settle(slot)
        return slot.failure === undefined ? Effect.succeed(slot.phase === "ready") : Effect.fail(slot.failure)
      }),
    clearReady: (index) =>
      ofSlot("clearReady", index, (slot) => {
        settle(slot)
        clear(slot)
        return Effect.void
      }),
    waitReady: (index) => ofSlot("waitReady", index, waitReady),
    waitCurrentStreamForReady: (index, stream) =>
      ofSlot("waitCurrentStreamForReady", index, (slot) => {
        const op = "waitCurrentStreamForReady"
        if (stream !== undefined && !equalDevices(stream.device, target)) {
          const [theirs, ours] = [formatDevice(stream.device), formatDevice(target)]
          const what = `A stream of ${theirs} cannot wait for a slot of ${ours}.`
          return Effect.fail(refusals.refuse("DeviceMismatch", op, what, "Give a stream of the same device.", index))
        }
        return awaitCopy(op, slot, ({ copy }) => copy.streamWait(stream))
      }),
    copySeconds: (index) =>
      ofSlot("copySeconds", index, (slot) => {
        settle(slot)
        const isKnown = device.attributes().supportsTimingEvents && !isBusy(slot)
        return Effect.succeed(isKnown ? slot.current?.copy.seconds() : undefined)
      })
  }
})

/** `ReplayTransferBackend` over a device; the scope of the device is the layer's. */
export const replayTransferLayer = <E, R>(
  device: Effect.Effect<ReplayDevice, E, R>,
  options: ReplayTransferLayerOptions
): Layer.Layer<ReplayTransferBackend, E, Exclude<R, EffectScope.Scope>> =>
  Layer.effect(
    ReplayTransferBackend,
    Effect.flatMap(device, (opened) => makeBackend(opened, options))
  )
