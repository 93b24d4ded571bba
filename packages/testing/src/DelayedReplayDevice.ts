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
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { type Move, type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"

/** How submissions go: handed to the device, made by their caller, or recorded for the consumer's wait. */
export type DelayedMode = "asynchronous" | "synchronous" | "deferred"

/** A copy that has started and not ended. */
export interface PendingCopy extends Move {
  readonly slot: number
  /** Moves the bytes and ends the copy; or ends it with a failure and moves nothing. */
  readonly finish: (failure?: ReplayTransferError) => Effect.Effect<void>
}

export interface DelayedReplayDevice extends ReplayDevice {
  readonly pending: () => ReadonlyArray<PendingCopy>
  /** Ends one copy, in a seeded order; false where none is pending, or copies are held. */
  readonly finishOne: Effect.Effect<boolean>
  /** Ends copies one after the other, each when everything else that can go on has, until it is interrupted. */
  readonly finishAlways: Effect.Effect<never>
  /** While the scope is open `finishOne` ends nothing. */
  readonly hold: Effect.Effect<void, never, EffectScope.Scope>
  readonly registered: () => number
  /** The n-th registration from now on fails, counted from 0. */
  readonly failRegistration: (nth: number) => Effect.Effect<void>
  /** The next copy that ends does so with this failure. */
  readonly failNext: (failure: ReplayTransferError) => Effect.Effect<void>
  /** A queue of work; `queue` adds a move to it. */
  readonly openStream: Effect.Effect<ReplayStream>
  readonly queue: (stream: ReplayStream | undefined, move: Move) => Effect.Effect<void>
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

interface Job extends Move {
  readonly slot: number
  outcome: boolean | ReplayTransferError
  readonly waiting: Set<() => void>
}

const poison = 0xb6

/** Memory by address; the lowest free address of a length is given out first. */
const makeAddresses = () => {
  const free = new Map<number, Array<bigint>>()
  let next = 1n << 40n
  return {
    take: (byteLength: number): bigint => {
      const known = free.get(byteLength)?.shift()
      if (known !== undefined) return known
      next += BigInt(byteLength) + 4096n
      return next
    },
    give: (byteLength: number, address: bigint) => {
      free.set(byteLength, [address, ...(free.get(byteLength) ?? [])])
    }
  }
}

/** Dense tensors only. */
const moveBytes = ({ dst, src }: Move): void => {
  const length = tensorByteLength(src)
  dst.storage.bytes!.set(src.storage.bytes!.subarray(src.byteOffset, src.byteOffset + length), dst.byteOffset)
}

/** A device with poisoned memory on which nothing is pending. */
export const makeDelayedReplayDevice = ({
  mode,
  seed = 1,
  device = cpu
}: DelayedReplayOptions): DelayedReplayDevice => {
  const jobs: Array<Job> = []
  const addresses = makeAddresses()
  const streams = new Map<bigint, { readonly work: Array<Job | Move>; readonly idle: Set<() => void> }>()
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

  const streamOf = (stream: ReplayStream | undefined) => {
    const handle = stream?.handle ?? 0n
    const known = streams.get(handle) ?? { work: [], idle: new Set() }
    streams.set(handle, known)
    return known
  }

  /** Runs what is at the head of each stream, up to the first copy that has not ended. */
  const advance = (): void => {
    for (const { work, idle } of streams.values()) {
      while (work.length > 0) {
        const head = work[0]!
        if ("outcome" in head && head.outcome === false) break
        work.shift()
        if (!("outcome" in head)) moveBytes(head)
      }
      if (work.length > 0) continue
      for (const resume of idle) resume()
      idle.clear()
    }
  }

  const drop = (job: Job): boolean => {
    const at = jobs.indexOf(job)
    if (at >= 0) jobs.splice(at, 1)
    return at >= 0
  }

  const finish = (job: Job, failure?: ReplayTransferError): Effect.Effect<void> =>
    Effect.sync(() => {
      if (!drop(job)) return
      if (failure === undefined) moveBytes(job)
      job.outcome = failure ?? true
      const waiting = [...job.waiting]
      job.waiting.clear()
      for (const resume of waiting) resume()
      advance()
    })

  const submit = (slot: number, move: Move): Job => {
    const job: Job = { ...move, slot, outcome: false, waiting: new Set() }
    jobs.push(job)
    return job
  }

  const awaitJob = (job: Job): Effect.Effect<void, ReplayTransferError> =>
    Effect.andThen(
      Effect.callback<void>((resume) => {
        if (job.outcome !== false) return resume(Effect.void)
        const resumed = () => resume(Effect.void)
        job.waiting.add(resumed)
        return Effect.sync(() => {
          job.waiting.delete(resumed)
        })
      }),
      Effect.suspend(() => (typeof job.outcome === "boolean" ? Effect.void : Effect.fail(job.outcome)))
    )

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

  /** Freed memory is overwritten, but only behind the copies that use it; its address is given out again at once. */
  const release = (byteLength: number, address: bigint, bytes: Uint8Array) => {
    addresses.give(byteLength, address)
    const isUsed = jobs.some(
      (job) => job.src.storage.bytes?.buffer === bytes.buffer || job.dst.storage.bytes?.buffer === bytes.buffer
    )
    if (!isUsed) bytes.fill(poison)
  }

  const allocateStorage = (byteLength: number, on: Device) =>
    Effect.acquireRelease(
      Effect.sync(() => {
        const address = addresses.take(byteLength)
        const bytes = new Uint8Array(byteLength).fill(poison)
        return makeStorage({
          device: on,
          address,
          byteLength,
          bytes,
          release: () => release(byteLength, address, bytes)
        })
      }),
      (storage) => Effect.sync(storage.free)
    )

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
