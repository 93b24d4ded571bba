// SPDX-License-Identifier: Apache-2.0
/**
 * One open device: its native object, what runs on it, and which other devices of this process it can reach.
 *
 * Invariants: work on a device is started in an order and done in that order; what waits for "everything that runs now"
 * runs once, when all of it has ended. Closing cancels what runs and gives back everything made on the device.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { Device } from "@tensorferry/core/tensor/Device"
import { describeFailure } from "@tensorferry/native/describeFailure"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { type NativeJob, runJob, type Start, startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import type { Addon, DeviceFacts, NativeDevice, NativeLibraries, Vendor } from "./Addon.ts"
import { backgroundIdle, backgroundOf } from "./BackgroundWork.ts"
import { type Discovered, discover } from "./discover.ts"
import { unavailable, unavailableBecause } from "./failures.ts"
import { chooseOrdinal, type GpuOptions, kernelCacheFolder } from "./options.ts"

/** An open device: its addon, facts, streams and peers. */
export interface Gpu {
  /** The native functions. */
  readonly addon: Addon
  /** The vendor's libraries that were opened. */
  readonly libraries: NativeLibraries
  /** The addon's handle of the open device. */
  readonly native: NativeDevice
  /** Whose device it is. */
  readonly vendor: Vendor
  /** The device's number among those that this process sees. */
  readonly ordinal: number
  /** As tensors name it. */
  readonly device: Device
  /** Name, memory and abilities. */
  readonly facts: DeviceFacts
  /** Whether the collectives library was found. */
  readonly hasCollectives: boolean
  /** Starts work; `finished` runs once when it has ended, not if it never started. */
  readonly start: <A>(start: Start<A>, finished?: () => void) => Result.Result<NativeJob<A>, NativeFailure>
  /** Starts work and waits; interruption cancels it and waits for that. `finished` runs once, also if it never started. */
  readonly run: <A>(start: Start<A>, finished?: () => void) => Effect.Effect<A, NativeFailure>
  /**
   * Counts as running until the function that it gives back is called: for what others do to this process's memory.
   */
  readonly occupy: () => () => void
  /** Does this now, or when everything that runs now has ended, background work on the device too. */
  readonly whenDone: (action: () => void) => void
  /** Lets kernels touch memory of another device of this process; fails in words. */
  readonly enablePeerAccess: (ordinal: number) => Result.Result<void, string>
  /** The number here of the device with this identity, where it is visible. */
  readonly ordinalOf: (uuid: string) => number | undefined
  /** True once the layer's scope has ended. */
  readonly isClosed: () => boolean
  /**
   * The same device with streams of its own: what runs there overlaps what runs here. Both count as one for `whenDone`.
   * Closed with the scope.
   */
  readonly openLane: Effect.Effect<Gpu, NativeFailure, EffectScope.Scope>
}

type OpenNative = Effect.Effect<NativeDevice, NativeFailure>

const gpuOf = (
  addon: Addon,
  found: Discovered,
  ordinal: number,
  native: NativeDevice,
  facts: DeviceFacts,
  openNative: OpenNative
) => {
  const { libraries, vendor, opened } = found
  const running = new Set<object>()
  const peers = new Map<number, Result.Result<void, string>>()
  const waiting = new Map<object, Array<() => void>>()
  let uuids: ReadonlyArray<string | undefined> | undefined
  let closed = false

  const ended = (work: object): void => {
    running.delete(work)
    const actions = waiting.get(work) ?? []
    waiting.delete(work)
    for (const act of actions) act()
  }

  const start = <A>(begin: Start<A>, finished: () => void = () => {}) => {
    const started: Result.Result<NativeJob<A>, NativeFailure> = startJob<A>(addon, begin, () => {
      if (Result.isSuccess(started)) ended(started.success)
      finished()
    })
    if (Result.isSuccess(started)) running.add(started.success)
    return started
  }

  const reach = (peer: number): Result.Result<void, string> => {
    if (peer === ordinal) return Result.succeed(undefined)
    const can = addon.canAccessPeer(libraries, ordinal, peer)
    if (can.code === "Ok" && !can.value) return Result.fail(`devices ${ordinal} and ${peer} cannot access each other`)
    const enabled = addon.enablePeer(native, peer)
    return enabled.code === "Ok" ? Result.succeed(undefined) : Result.fail(describeFailure(enabled))
  }

  const gpu: Gpu = {
    addon,
    libraries,
    native,
    vendor,
    ordinal,
    device: { family: vendor, index: ordinal },
    facts,
    hasCollectives: opened.collectives.path !== undefined && opened.collectives.problem === undefined,
    start,
    run: (begin, finished = () => {}) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.suspend(() => {
          const started = start(begin, finished)
          if (Result.isFailure(started)) {
            finished()
            return Effect.fail(started.failure)
          }
          const job = started.success
          return Effect.onInterrupt(restore(job.await), () => job.cancel)
        })
      ),
    occupy: () => {
      const work = {}
      running.add(work)
      return () => ended(work)
    },
    whenDone: (action) => {
      let left = running.size + 1
      const oneEnded = () => {
        left -= 1
        if (left === 0) action()
      }
      for (const job of running) waiting.set(job, [...(waiting.get(job) ?? []), oneEnded])
      for (const work of backgroundOf(vendor, ordinal)) {
        if (work.whenIdle(oneEnded)) left += 1
      }
      oneEnded()
    },
    enablePeerAccess: (peer) => {
      const known = peers.get(peer) ?? reach(peer)
      peers.set(peer, known)
      return known
    },
    ordinalOf: (uuid) => {
      uuids ??= Array.from({ length: found.count }, (_, index) => {
        const answer = addon.deviceFacts(libraries, index)
        return answer.code === "Ok" ? answer.value.uuid : undefined
      })
      const index = uuids.indexOf(uuid)
      return index < 0 ? undefined : index
    },
    isClosed: () => closed,
    openLane: Effect.map(
      Effect.acquireRelease(
        Effect.map(openNative, (lane) => ({ lane, isClosed: false })),
        (held) =>
          Effect.sync(() => {
            held.isClosed = true
            addon.closeDevice(held.lane)
          })
      ),
      (held) => ({ ...gpu, native: held.lane, isClosed: () => held.isClosed })
    )
  }
  const close = Effect.andThen(
    backgroundIdle(vendor, ordinal),
    Effect.sync(() => {
      closed = true
      addon.closeDevice(native)
    })
  )
  return { gpu, close }
}

/** Opens the device that the options and the environment choose; closed with the scope. */
export const openGpu = Effect.fnUntraced(function* (
  addon: Addon,
  backend: string,
  options: GpuOptions
): Effect.fn.Return<Gpu, BackendError, EffectScope.Scope> {
  const found = discover(addon, options)
  if (Result.isFailure(found)) {
    const { cause, remedy, tried } = found.failure
    return yield* unavailable(backend, `${cause}${tried.length === 0 ? "" : ` Tried: ${tried.join("; ")}.`}`, remedy)
  }
  const { libraries, count, vendor } = found.success
  const ordinal = chooseOrdinal(options, count)
  if (ordinal >= count) {
    return yield* unavailable(
      backend,
      `There is no device ${vendor}:${ordinal}; this process sees ${count}.`,
      `Choose a device from 0 to ${count - 1}.`
    )
  }
  const facts = addon.deviceFacts(libraries, ordinal)
  if (facts.code !== "Ok") return yield* unavailableBecause(backend, facts)
  const kernelCache = kernelCacheFolder(options)
  const opening = runJob<NativeDevice>(
    addon,
    (done) =>
      addon.startOpenDevice(
        libraries,
        ordinal,
        {
          ...(kernelCache === undefined ? {} : { kernelCache }),
          // Room for other kernels: what is copied within the rank and what travels, collectives too, go at once.
          blocks: options.blocks ?? Math.max(1, Math.floor((facts.value.processors * 3) / 4))
        },
        done
      ),
    () => {}
  )
  const { gpu } = yield* Effect.acquireRelease(
    Effect.mapBoth(opening, {
      onFailure: (failure) => unavailableBecause(backend, failure),
      onSuccess: (native) => gpuOf(addon, found.success, ordinal, native, facts.value, opening)
    }),
    ({ close }) => close
  )
  return gpu
})
