// SPDX-License-Identifier: Apache-2.0
/**
 * One open device: its native object, its memory, and what runs on it.
 *
 * Invariants: all layers of a process that use a device by the same driver share it, because memory of one context means
 * nothing to another; it is closed when the last of them is. Freed memory goes back only after everything that ran when
 * it was freed. Closing cancels what runs and gives back everything made on the device.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { Device } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { type NativeJob, runJob, type Start, startJob } from "@tensorferry/native/NativeJob"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type { Addon, DeviceFacts, DriverName, NativeDevice, OpenedDevice, XpuCapabilities } from "./Addon.ts"
import { backendName } from "./Addon.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import { type Discovered, discover } from "./discover.ts"
import { unavailable, unavailableBecause } from "./failures.ts"
import { chooseOrdinal, type XpuOptions } from "./options.ts"

export interface Xpu {
  readonly addon: Addon
  readonly native: NativeDevice
  readonly driver: DriverName
  /** Why this driver. */
  readonly reason: string
  /** As tensors name it. */
  readonly device: Device
  readonly facts: DeviceFacts
  readonly capabilities: XpuCapabilities
  /** Starts work and waits; interruption cancels it and waits for that. */
  readonly run: <A>(start: Start<A>) => Effect.Effect<A, NativeFailure>
  /** A copy was started whose end is not reported: memory is freed only behind it. */
  readonly copyStarted: () => void
  /** Ends when everything that runs now has ended: true; or after a while, when it has not. */
  readonly settled: Effect.Effect<boolean>
  /** Memory with unspecified contents, freed by the scope. */
  readonly allocate: (byteLength: number) => Effect.Effect<Storage, NativeFailure, EffectScope.Scope>
  readonly isClosed: () => boolean
}

/** How long releasing waits for what uses the released. */
const settleLimit = Duration.seconds(10)

const xpuOf = (addon: Addon, found: Discovered, ordinal: number, opened: OpenedDevice) => {
  const { device: native, capabilities } = opened
  const device: Device = { family: backendName, index: ordinal }
  const running = new Set<object>()
  const waiting = new Map<object, Array<() => void>>()
  let startedCopies = 0
  let drainedCopies = 0
  let closed = false

  const start = <A>(begin: Start<A>): Result.Result<NativeJob<A>, NativeFailure> => {
    const started: Result.Result<NativeJob<A>, NativeFailure> = startJob<A>(addon, begin, () => {
      if (Result.isFailure(started)) return
      running.delete(started.success)
      const actions = waiting.get(started.success) ?? []
      waiting.delete(started.success)
      for (const act of actions) act()
    })
    if (Result.isSuccess(started)) running.add(started.success)
    return started
  }

  /** Replay copies become work whose end is reported. */
  const watchCopies = (): void => {
    if (startedCopies === drainedCopies) return
    const before = startedCopies
    const drain = start<undefined>((done) => addon.startDrain(native, done))
    if (Result.isFailure(drain)) return
    waiting.set(drain.success, [
      () => {
        drainedCopies = Math.max(drainedCopies, before)
      }
    ])
  }

  /** Does this now, or when everything that runs now has ended. */
  const whenDone = (action: () => void): void => {
    if (!closed) watchCopies()
    let left = running.size
    if (left === 0) action()
    const oneEnded = () => {
      left -= 1
      if (left === 0) action()
    }
    for (const job of running) waiting.set(job, [...(waiting.get(job) ?? []), oneEnded])
  }

  const free = (address: number): void =>
    whenDone(() => {
      if (!closed) start<undefined>((done) => addon.startFree(native, address, done))
    })

  const run = <A>(begin: Start<A>): Effect.Effect<A, NativeFailure> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        const started = start(begin)
        if (Result.isFailure(started)) return Effect.fail(started.failure)
        const job = started.success
        return Effect.onInterrupt(restore(job.await), () => job.cancel)
      })
    )

  const xpu: Xpu = {
    addon,
    native,
    driver: found.driver,
    reason: found.reason,
    device,
    facts: found.devices[ordinal]!,
    capabilities,
    run,
    copyStarted: () => {
      startedCopies += 1
    },
    settled: Effect.callback<boolean>((resume) => whenDone(() => resume(Effect.succeed(true)))).pipe(
      Effect.interruptible,
      Effect.timeoutOrElse({ duration: settleLimit, orElse: () => Effect.succeed(false) })
    ),
    allocate: (byteLength) =>
      Effect.acquireRelease(
        // Storage of nothing has an address of its own too.
        Effect.map(
          run<bigint>((done) => addon.startAllocate(native, Math.max(1, byteLength), done)),
          (address) =>
            makeStorage({
              device,
              address,
              byteLength,
              sharing: new DeviceRegion(address, xpu),
              release: () => free(Number(address))
            })
        ),
        (storage) => Effect.sync(storage.free)
      ),
    isClosed: () => closed
  }
  /** What still runs ends off the JS thread, unless it does not end: closing then cancels this wait too. */
  const settle = Effect.suspend(() => {
    const drain = start<undefined>((done) => addon.startDrain(native, done))
    if (Result.isFailure(drain)) return Effect.void
    return Effect.ignore(Effect.timeoutOption(Effect.interruptible(drain.success.await), Duration.seconds(1)))
  })
  const close = Effect.andThen(
    settle,
    Effect.sync(() => {
      closed = true
      addon.closeDevice(native)
    })
  )
  return { xpu, close }
}

interface Held {
  readonly xpu: Xpu
  readonly close: Effect.Effect<void>
  users: number
}

const held = new Map<string, Held>()
const opening = Semaphore.makeUnsafe(1)

const openShared = (
  addon: Addon,
  found: Discovered,
  ordinal: number,
  options: XpuOptions
): Effect.Effect<{ readonly xpu: Xpu; readonly leave: Effect.Effect<void> }, NativeFailure> =>
  opening.withPermits(1)(
    Effect.suspend(() => {
      const forbidden = [...new Set(options.forbid ?? [])].sort()
      const key = [found.driver, found.path, ordinal, ...forbidden].join("\n")
      const enter = (entry: Held) => {
        entry.users += 1
        const leave = opening.withPermits(1)(
          Effect.suspend(() => {
            entry.users -= 1
            if (entry.users > 0) return Effect.void
            held.delete(key)
            return entry.close
          })
        )
        return { xpu: entry.xpu, leave }
      }
      const known = held.get(key)
      if (known !== undefined) return Effect.succeed(enter(known))
      return Effect.map(
        runJob<OpenedDevice>(
          addon,
          (done) => addon.startOpenDevice(found.platform, ordinal, forbidden, done),
          () => {}
        ),
        (opened) => {
          const entry: Held = { ...xpuOf(addon, found, ordinal, opened), users: 0 }
          held.set(key, entry)
          return enter(entry)
        }
      )
    })
  )

/** Opens the device of this number, or the one that options and environment choose; given back with the scope. */
export const openXpu = Effect.fnUntraced(function* (
  addon: Addon,
  options: XpuOptions,
  index?: number
): Effect.fn.Return<Xpu, BackendError, EffectScope.Scope> {
  const found = yield* Effect.mapError(discover(addon, options), ({ cause, remedy, tried, nativeCode }) =>
    unavailable(`${cause}${tried.length === 0 ? "" : ` Tried: ${tried.join("; ")}.`}`, remedy, nativeCode)
  )
  const count = found.devices.length
  const ordinal = index ?? chooseOrdinal(options, count)
  if (ordinal >= count) {
    return yield* unavailable(
      `There is no device ${backendName}:${ordinal}; this process sees ${count} by ${found.driver}.`,
      `Choose a device from 0 to ${count - 1}.`
    )
  }
  const { xpu } = yield* Effect.acquireRelease(
    Effect.mapError(openShared(addon, found, ordinal, options), unavailableBecause),
    ({ leave }) => leave
  )
  return xpu
})
