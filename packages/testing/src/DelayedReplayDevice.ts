// SPDX-License-Identifier: Apache-2.0
/**
 * A replay device in memory of this process, whose copies end when a test says so: late, in a seeded order, or not at all.
 * Who reads a slot too early reads old bytes, and who reuses a source too early copies new ones.
 *
 * Invariants: bytes move when a copy ends and at no other time. Freed memory is given out again at the same address, as
 * allocators do.
 */

import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { ReplayCopy, ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import {
  type ReplayStream,
  type ReplayTransferAttributes,
  type ReplayTransferError,
  replayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import { cpu, type Device } from "@tensorferry/core/tensor/Device"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Move, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { type Job, makeDelayedJobs, makeDelayedMemory } from "./DelayedJobs.ts"

/** How submissions go: handed to the device, made by their caller, or recorded for the consumer's wait. */
export type DelayedMode = "asynchronous" | "synchronous" | "deferred"

/** A copy that has started and not ended. */
export interface PendingCopy extends Move {
  /** Of the device. */
  readonly slot: number
  /** Moves the bytes and ends the copy; or ends it with a failure and moves nothing. */
  readonly finish: (failure?: ReplayTransferError) => Effect.Effect<void>
}

/** A replay device whose copies are held back until a test lets them go. */
export interface DelayedReplayDevice extends ReplayDevice {
  /** Copies that were started and have not ended, in their order. */
  readonly pending: () => ReadonlyArray<PendingCopy>
  /** Ends one copy, in a seeded order; false where none is pending, or copies are held. */
  readonly finishOne: Effect.Effect<boolean>
  /** Ends copies one after the other, each when everything else that can go on has, until it is interrupted. */
  readonly finishAlways: Effect.Effect<never>
  /** While the scope is open `finishOne` ends nothing. */
  readonly hold: Effect.Effect<void, never, EffectScope.Scope>
  /** Host slots that are registered now. */
  readonly registered: () => number
  /** The n-th registration from now on fails, counted from 0. */
  readonly failRegistration: (nth: number) => Effect.Effect<void>
  /** The next copy that ends does so with this failure. */
  readonly failNext: (failure: ReplayTransferError) => Effect.Effect<void>
  /** A queue of work; `queue` adds a move to it. */
  readonly openStream: Effect.Effect<ReplayStream>
  /** Puts a copy into a stream. */
  readonly queue: (stream: ReplayStream | undefined, move: Move) => Effect.Effect<void>
  /** Ends when nothing is left in a stream. */
  readonly streamIdle: (stream: ReplayStream | undefined) => Effect.Effect<void>
  /** Memory of the host that comes back at the same address. */
  readonly allocateHost: (byteLength: number) => Effect.Effect<Storage, never, EffectScope.Scope>
}

/** How the device takes submissions, and in which order copies end. */
export interface DelayedReplayOptions {
  readonly mode: DelayedMode
  /** Decides the order; 1 by default. */
  readonly seed?: number
  /** The device that slots are on; cpu by default. */
  readonly device?: Device
}

/** A device with poisoned memory on which nothing is pending. */
export const makeDelayedReplayDevice = ({
  mode,
  seed = 1,
  device = cpu
}: DelayedReplayOptions): DelayedReplayDevice => {
  const { jobs, streamOf, advance, drop, finish, submit, awaitJob } = makeDelayedJobs()
  const allocateStorage = makeDelayedMemory(jobs)
  let holds = 0
  let registered = 0
  let streamCount = 0
  let nextFailure: ReplayTransferError | undefined
  let failing = Number.POSITIVE_INFINITY
  let state = seed >>> 0

  const below = (limit: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * limit)
  }

  const copyOf = (slot: number, move: Move): ReplayCopy => {
    let last: Job | undefined
    const awaited: Effect.Effect<void, ReplayTransferError> = Effect.suspend(() =>
      last === undefined ? Effect.void : awaitJob(last)
    )
    return {
      start: () => {
        if (mode === "asynchronous") {
          last = submit(slot, move)
          return undefined
        }
        return Effect.suspend(() => {
          const job = submit(slot, move)
          last = job
          return Effect.onInterrupt(awaitJob(job), () =>
            Effect.sync(() => {
              drop(job)
              job.outcome = true
            })
          )
        })
      },
      isDone: () => last?.outcome ?? true,
      wait: awaited,
      streamWait: (stream) =>
        Effect.sync(() => {
          if (last !== undefined && last.outcome === false) streamOf(stream).work.push(last)
        }),
      seconds: () => undefined
    }
  }

  const turn = Effect.callback<void>((resume) => {
    const handle = setImmediate(() => resume(Effect.void))
    return Effect.sync(() => clearImmediate(handle))
  })
  const finishOne = Effect.suspend(() => {
    if (holds > 0 || jobs.length === 0) return Effect.succeed(false)
    const failure = nextFailure
    nextFailure = undefined
    return Effect.as(finish(jobs[below(jobs.length)]!, failure), true)
  })

  const attributes: ReplayTransferAttributes = {
    device,
    deviceFamily: device.family,
    h2dSubmitter:
      mode === "asynchronous" ? "xpu_copy_stream" : mode === "deferred" ? "torch_copy_deferred" : "torch_copy",
    hostMemoryKind: "pageable_shared",
    hostPinned: false,
    directPinnedShared: false,
    supportsAsyncSubmit: mode === "asynchronous",
    supportsTimingEvents: false
  }

  return {
    ...(mode === "deferred" ? { isDeferred: true } : {}),
    attributes: () => attributes,
    register: (_, index) =>
      Effect.asVoid(
        Effect.acquireRelease(
          Effect.suspend(() => {
            failing -= 1
            if (failing < 0) {
              failing = Number.POSITIVE_INFINITY
              return Effect.fail(
                replayTransferError("RegistrationFailed", {
                  slot: index,
                  op: "registerHostSlots",
                  detail: "The test has it fail.",
                  remedy: "None."
                })
              )
            }
            registered += 1
            return Effect.void
          }),
          () =>
            Effect.sync(() => {
              registered -= 1
            })
        )
      ),
    allocate: (shape: Shape, dtype: DType): Effect.Effect<Tensor, ReplayTransferError, EffectScope.Scope> =>
      Effect.map(allocateStorage(byteLengthOf(dtype, elementCount(shape)), device), (storage) =>
        Result.getOrThrow(tensorView(storage, dtype, shape))
      ),
    prepare: (slot, dst, src) => Effect.succeed(copyOf(slot, { dst, src })),
    pending: () => jobs.map((job) => ({ slot: job.slot, dst: job.dst, src: job.src, finish: (f) => finish(job, f) })),
    finishOne,
    finishAlways: Effect.forever(Effect.andThen(turn, finishOne)),
    hold: Effect.acquireRelease(
      Effect.sync(() => {
        holds += 1
      }),
      () =>
        Effect.sync(() => {
          holds -= 1
        })
    ),
    registered: () => registered,
    failRegistration: (nth) =>
      Effect.sync(() => {
        failing = nth
      }),
    failNext: (failure) =>
      Effect.sync(() => {
        nextFailure = failure
      }),
    openStream: Effect.sync(() => {
      streamCount += 1
      return { device, handle: BigInt(streamCount) }
    }),
    queue: (stream, move) =>
      Effect.sync(() => {
        streamOf(stream).work.push(move)
        advance()
      }),
    streamIdle: (stream) =>
      Effect.callback((resume) => {
        const { work, idle } = streamOf(stream)
        if (work.length === 0) return resume(Effect.void)
        const resumed = () => resume(Effect.void)
        idle.add(resumed)
        return Effect.sync(() => {
          idle.delete(resumed)
        })
      }),
    allocateHost: (byteLength) => allocateStorage(byteLength, cpu)
  }
}
