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
import { defaultBusyPollMillis, pollUntil } from "../service/BusyPolling.ts"
import type { ReplayDevice } from "../service/ReplayDevice.ts"
import {
  ReplayTransferBackend,
  type ReplayTransferBackendShape,
  type ReplayTransferError
} from "../service/ReplayTransferBackend.ts"
import { equalDevices, formatDevice } from "../tensor/Device.ts"
import type { Storage } from "../tensor/Storage.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { makeRefusals, makeReplayChecks } from "./internal/checks.ts"
import {
  begin,
  breakMaking,
  changed,
  clear,
  endMaking,
  endRun,
  isBusy,
  isUnderWay,
  type KnownCopy,
  knownCopy,
  makeSlot,
  type ReplaySlot,
  remember,
  settle,
  stateOf,
  wake
} from "./internal/slot.ts"

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

interface Pair {
  readonly destination: Tensor
  readonly source: Tensor
}

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

const secondsSince = (started: number): number => (performance.now() - started) / 1000

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
  const checks = makeReplayChecks(refusals, target)
  let isClosed = false

  const bounded = <A>(op: string, slot: ReplaySlot, what: string, work: Doing<A>): Doing<A> =>
    Effect.timeoutOrElse(work, {
      duration: deadline,
      orElse: () => Effect.fail(refusals.late(op, slot.index, what, Duration.format(deadline)))
    })

  /** Runs what `start` gave; however that ends, the slot knows. */
  const runStart = (slot: ReplaySlot, next: KnownCopy, starting: Doing<void>): Doing<void> => {
    begin(slot, next, "making")
    return Effect.matchCauseEffect(starting, {
      onSuccess: () => {
        endMaking(slot)
        return slot.phase === "idle" && slot.failure !== undefined ? Effect.fail(slot.failure) : Effect.void
      },
      onFailure: (cause) => {
        const [reason] = cause.reasons
        breakMaking(slot, reason?._tag === "Fail" ? reason.error : undefined, isDeferred)
        return Effect.failCause(cause)
      }
    })
  }

  /** A submission whose copy is made by its caller. Much may have happened since it was found right. */
  const make = (slot: ReplaySlot, next: KnownCopy, starting: Doing<void>): Doing<void> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        settle(slot)
        const { index } = slot
        if (isClosed) return Effect.fail(refusals.closed("submitH2d", index))
        if (isBusy(slot)) return Effect.fail(refusals.busy(index, false))
        const fault = checks.freed(index, next.destination, next.source)
        return fault === undefined ? runStart(slot, next, restore(starting)) : Effect.fail(fault)
      })
    )

  /** The consumer's wait makes the copy that a submission recorded, unless somebody else did, or dropped it. */
  const makeRecorded = (slot: ReplaySlot, recorded: KnownCopy, run: number): Doing<void> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        if (isClosed || slot.phase !== "recorded" || slot.run !== run) return Effect.void
        const fault = checks.freed(slot.index, recorded.destination, recorded.source)
        const starting = fault === undefined ? recorded.copy.start() : Effect.fail(fault)
        if (starting !== undefined) return runStart(slot, recorded, restore(starting))
        begin(slot, recorded, "running")
        return Effect.void
      })
    )

  const start = (slot: ReplaySlot, next: KnownCopy, started: number): Doing<number> => {
    if (isDeferred) {
      begin(slot, next, "recorded")
      return Effect.succeed(secondsSince(started))
    }
    const starting = next.copy.start()
    if (starting !== undefined) {
      const made = bounded("submitH2d", slot, "The copy did not end into", make(slot, next, starting))
      return Effect.map(made, () => secondsSince(started))
    }
    begin(slot, next, "running")
    return Effect.succeed(secondsSince(started))
  }

  const prepare = Effect.fnUntraced(function* (slot: ReplaySlot, { destination, source }: Pair) {
    const objection = checks.pair(slot.index, destination, source)
    if (objection !== undefined) return yield* objection
    remember(slot, destination, source, yield* device.prepare(slot.index, destination, source))
  })

  const submit = (submission: Pair & { readonly slot: number }, started: number): Doing<number> => {
    const slot = slots[submission.slot]
    if (slot === undefined) return Effect.fail(refusals.outOfRange("submitH2d", submission.slot))
    if (isClosed) return Effect.fail(refusals.closed("submitH2d", slot.index))
    settle(slot)
    if (isBusy(slot)) return Effect.fail(refusals.busy(slot.index, slot.phase === "recorded"))
    const { destination, source } = submission
    if (destination.storage.isFreed() || source.storage.isFreed()) {
      return Effect.fail(checks.freed(slot.index, destination, source)!)
    }
    const known = knownCopy(slot, destination, source)
    if (known !== undefined) return start(slot, known, started)
    return Effect.andThen(
      prepare(slot, submission),
      Effect.suspend(() => submit(submission, started))
    )
  }

  /** Ends when the slot's copy has, be it ready or not: for those who are about to release its memory. */
  const drained = (slot: ReplaySlot): Effect.Effect<void> =>
    Effect.suspend(() => {
      settle(slot)
      const { run, version } = slot
      if (slot.phase === "making") return Effect.andThen(changed(slot, version), drained(slot))
      if (slot.phase !== "running") return Effect.void
      return Effect.andThen(
        Effect.matchEffect(slot.current!.copy.wait, {
          onSuccess: () => Effect.sync(() => endRun(slot, run, undefined)),
          onFailure: (error) => Effect.sync(() => endRun(slot, run, error))
        }),
        drained(slot)
      )
    })

  const drain = (chosen: (slot: ReplaySlot) => boolean): Effect.Effect<void> =>
    Effect.suspend(() => Effect.forEach(slots.filter(isUnderWay).filter(chosen), drained, { discard: true })).pipe(
      Effect.interruptible,
      Effect.timeoutOrElse({
        duration: deadline,
        orElse: () =>
          Effect.logWarning(
            `A replay copy to ${formatDevice(target)} did not end for ${Duration.format(deadline)}; its memory is released.`
          )
      })
    )

  const drainStorages = (storages: ReadonlySet<Storage>): Effect.Effect<void> =>
    drain(({ current }) => storages.has(current!.destination.storage) || storages.has(current!.source.storage))

  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      isClosed = true
      for (const slot of slots) wake(slot)
      return drain(() => true)
    })
  )

  /**
   * Waits for the slot's copy; for the next one where none is under way, or the one under way does not count.
   * `whileRunning` says what to do once the device has the copy.
   */
  const awaitCopy = (op: string, slot: ReplaySlot, whileRunning: (running: KnownCopy) => Doing<void>): Doing<void> => {
    const step: Doing<void> = Effect.suspend(() => {
      settle(slot)
      if (slot.phase === "ready") return Effect.void
      if (slot.failure !== undefined) return Effect.fail(slot.failure)
      const isHopeful = isUnderWay(slot) && !slot.isCleared
      if (isClosed && !isHopeful) return Effect.fail(refusals.closed(op, slot.index))
      const { phase, current, version } = slot
      if (phase === "running" && isHopeful) return whileRunning(current!)
      if (phase === "recorded") {
        const made = makeRecorded(slot, current!, slot.run)
        return Effect.andThen(bounded(op, slot, "The copy did not end into", made), step)
      }
      const what = isUnderWay(slot) ? "The copy did not end into" : "Nothing was submitted into"
      return Effect.andThen(bounded(op, slot, what, changed(slot, version)), step)
    })
    return step
  }

  const waitReady = (slot: ReplaySlot): Doing<void> => {
    const waiting: Doing<void> = awaitCopy("waitReady", slot, ({ copy }) => {
      const { run } = slot
      const isOver = (): boolean => {
        if (slot.run === run) settle(slot)
        return slot.run !== run || slot.phase !== "running"
      }
      const slept = Effect.matchEffect(copy.wait, {
        onSuccess: () => Effect.sync(() => endRun(slot, run, undefined)),
        onFailure: (error) => Effect.sync(() => endRun(slot, run, error))
      })
      const ended =
        pollMillis > 0
          ? Effect.andThen(
              pollUntil(isOver, pollMillis),
              Effect.suspend(() => (isOver() ? Effect.void : slept))
            )
          : slept
      return Effect.andThen(bounded("waitReady", slot, "The copy did not end into", ended), waiting)
    })
    return waiting
  }

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
          if (isClosed) return yield* refusals.closed("registerHostSlots")
          const objection = checks.hostSlots(list)
          if (objection !== undefined) return yield* objection
          // Last of all: what was prepared with registered memory is prepared anew.
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
          if (isClosed) return yield* refusals.closed(op)
          if (!Number.isSafeInteger(count) || count < 0) {
            return yield* refusals.refuse("SlotOutOfRange", op, `${count} is no number of slots.`, "Ask for 0 or more.")
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
    submitH2d: (submission) => Effect.suspend(() => submit(submission, performance.now())),
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
