// SPDX-License-Identifier: Apache-2.0
/**
 * Copies that have started and end when a test says so, streams of work behind them, and memory that is given out again
 * at the same address: what a delayed replay device is made of.
 *
 * Invariant: bytes move when a copy ends and at no other time.
 */
import type { ReplayStream, ReplayTransferError } from "@tensorferry/core/service/ReplayTransferBackend"
import type { Device } from "@tensorferry/core/tensor/Device"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import { type Move, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"

/** A copy that has started; its outcome is false until it has ended. */
export interface Job extends Move {
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

/** The copies of one device and its streams. */
export const makeDelayedJobs = () => {
  const jobs: Array<Job> = []
  const streams = new Map<bigint, { readonly work: Array<Job | Move>; readonly idle: Set<() => void> }>()

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

  return { jobs, streamOf, advance, drop, finish, submit, awaitJob }
}

/** Poisoned memory that comes back at the same address, overwritten once no copy of `jobs` uses it. */
export const makeDelayedMemory = (jobs: ReadonlyArray<Job>) => {
  const addresses = makeAddresses()

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

  return allocateStorage
}
