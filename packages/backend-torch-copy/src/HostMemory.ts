// SPDX-License-Identifier: Apache-2.0
/**
 * `HostMemory` over memory files: small storages share files of 16 MiB, large ones have one each.
 *
 * Invariants: a file is closed when its last storage is gone, but for one empty file kept for the next small storage;
 * memory handed out reads as zero; memory of other processes is mapped copy-on-write, so nothing done here reaches it,
 * unless it is opened by `openShared`.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import {
  HostMemory,
  type HostMemoryError,
  HostMemoryHandle,
  type HostMemoryReason,
  type HostMemoryShape,
  hostMemoryError
} from "@tensorferry/core/service/HostMemory"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage, type StorageFile } from "@tensorferry/core/tensor/Storage"
import { type FreeList, makeFreeList } from "@tensorferry/native/FreeList"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { acquirePool, runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type Addon, backendName, loadAddon, type NativeMemory } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import { makePinCount, type PinCount } from "./PinCount.ts"
import { unavailableBecause } from "./unavailable.ts"

/** Size of a file that small storages share. */
const arenaBytes = 16 * 2 ** 20
/** Storages from this size on have a file of their own. */
const dedicatedBytes = 4 * 2 ** 20
const pageBytes = 4096
/** Storages start at multiples of this: a cache line, and what vector instructions like. */
const alignment = 64

interface Arena {
  readonly memory: NativeMemory
  readonly free: FreeList
  readonly isShared: boolean
  readonly pins: PinCount
  /** Below this offset memory may have been used before and must be cleared again. */
  usedEnd: number
}

const reasonTags: Partial<Record<NativeFailure["code"], HostMemoryReason["_tag"]>> = {
  OutOfMemory: "OutOfMemory",
  PermissionDenied: "PermissionDenied",
  PeerGone: "OwnerGone"
}

const remedies: Record<HostMemoryReason["_tag"], string> = {
  OutOfMemory: "Free memory, raise the limit of memory or open files, or ask for less.",
  InvalidHandle: "Ask the owner for a new handle.",
  PermissionDenied: "Run both processes as the same user in the same container.",
  OwnerGone: "Start the owner again and ask it for a new handle.",
  NotShareable: "Allocate the storage with HostMemory or the engine of this backend, and keep its scope open."
}

const failureOf = (op: string, failure: NativeFailure): HostMemoryError => {
  const tag = reasonTags[failure.code] ?? "InvalidHandle"
  return hostMemoryError(tag, {
    backend: backendName,
    op,
    detail: `${failure.op}: ${failure.detail}`,
    remedy: remedies[tag],
    isRetryable: tag === "OutOfMemory",
    ...(failure.nativeCode === 0 ? {} : { nativeCode: failure.nativeCode })
  })
}

const refuse = (tag: HostMemoryReason["_tag"], op: string, detail: string): HostMemoryError =>
  hostMemoryError(tag, { backend: backendName, op, detail, remedy: remedies[tag] })

/** Host memory for this process. Its files outlive the scope for as long as storages use them. */
export const make = Effect.fnUntraced(function* (
  addon: Addon
): Effect.fn.Return<HostMemoryShape, BackendError, EffectScope.Scope> {
  const pool = yield* Effect.mapError(acquirePool(addon, 1), unavailableBecause)
  const identity = addon.identity()
  if (identity.code !== "Ok") return yield* unavailableBecause(identity)
  const { pid, processStart } = identity.value

  const shared = new Set<Arena>()
  const growing = Semaphore.makeUnsafe(1)
  let isClosed = false

  const close = (arena: Arena): void => {
    shared.delete(arena)
    addon.closeMemory(arena.memory.memory, arena.memory.buffer)
  }

  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      isClosed = true
      for (const arena of shared) if (arena.free.isEmpty()) close(arena)
    })
  )

  const releaseSlice = (arena: Arena, offset: number, byteLength: number): void => {
    arena.free.give(offset, byteLength)
    arena.usedEnd = Math.max(arena.usedEnd, offset + byteLength)
    if (!arena.free.isEmpty()) return
    const isSpare = arena.isShared && ![...shared].some((other) => other !== arena && other.free.isEmpty())
    if (isClosed || !isSpare) close(arena)
  }

  const slice = (arena: Arena, byteLength: number): Storage | undefined => {
    const byteOffset = arena.free.take(byteLength)
    if (byteOffset === undefined) return undefined
    const { address, buffer, descriptor, inode } = arena.memory
    const bytes = new Uint8Array(buffer!, byteOffset, byteLength)
    if (byteOffset < arena.usedEnd) bytes.fill(0)
    const region = new HostRegion(
      address + BigInt(byteOffset),
      { descriptor, inode, byteOffset },
      true,
      () => releaseSlice(arena, byteOffset, byteLength),
      arena.pins
    )
    return makeStorage({
      device: cpu,
      address: address + BigInt(byteOffset),
      byteLength,
      bytes,
      sharing: region,
      release: () => region.free()
    })
  }

  const newArena = (byteLength: number, isShared: boolean): Effect.Effect<Arena, HostMemoryError> =>
    runJob<NativeMemory>(
      addon,
      (done) => addon.startCreateMemory(pool, byteLength, done),
      () => {}
    ).pipe(
      Effect.mapError((failure) => failureOf("allocate", failure)),
      Effect.map((memory) => ({
        memory,
        free: makeFreeList(byteLength, alignment),
        isShared,
        pins: makePinCount(),
        usedEnd: 0
      }))
    )

  const sliceOfShared = (byteLength: number): Storage | undefined => {
    for (const arena of shared) {
      const storage = slice(arena, byteLength)
      if (storage !== undefined) return storage
    }
    return undefined
  }

  /** One at a time, so that several small requests at once do not make a file each. */
  const growShared = (byteLength: number): Effect.Effect<Storage, HostMemoryError> =>
    Semaphore.withPermits(
      growing,
      1
    )(
      Effect.suspend(() => {
        const storage = sliceOfShared(byteLength)
        if (storage !== undefined) return Effect.succeed(storage)
        return Effect.map(newArena(arenaBytes, true), (arena) => {
          shared.add(arena)
          return slice(arena, byteLength)!
        })
      })
    )

  const allocateStorage = (byteLength: number): Effect.Effect<Storage, HostMemoryError> => {
    if (!Number.isSafeInteger(byteLength) || byteLength < 0 || byteLength > Number.MAX_SAFE_INTEGER - pageBytes) {
      return Effect.fail(refuse("OutOfMemory", "allocate", `${byteLength} is not a number of bytes up to 2^53.`))
    }
    if (byteLength >= dedicatedBytes) {
      const fileBytes = Math.ceil(byteLength / pageBytes) * pageBytes
      return Effect.map(newArena(fileBytes, false), (arena) => slice(arena, byteLength)!)
    }
    return Effect.suspend(() => {
      const storage = sliceOfShared(byteLength)
      return storage === undefined ? growShared(byteLength) : Effect.succeed(storage)
    })
  }

  const share = (storage: Storage): Effect.Effect<HostMemoryHandle, HostMemoryError> =>
    Effect.suspend(() => {
      const region = storage.sharing
      if (storage.isFreed()) {
        return Effect.fail(refuse("NotShareable", "share", `Storage ${storage.generation} was freed.`))
      }
      if (!(region instanceof HostRegion) || region.origin === undefined) {
        return Effect.fail(
          refuse(
            "NotShareable",
            "share",
            `Storage ${storage.generation} is not memory that this process owns and maps.`
          )
        )
      }
      return Effect.succeed({
        version: 1 as const,
        pid,
        processStart: String(processStart),
        descriptor: region.origin.descriptor,
        inode: String(region.origin.inode),
        byteOffset: region.origin.byteOffset,
        byteLength: storage.byteLength,
        generation: storage.generation
      })
    })

  const openStorage = (handle: HostMemoryHandle, shared: boolean): Effect.Effect<Storage, HostMemoryError> =>
    Effect.suspend(() => {
      const decoded = Schema.decodeResult(HostMemoryHandle)(handle)
      if (Result.isFailure(decoded)) {
        return Effect.fail(refuse("InvalidHandle", "open", decoded.failure.message.replaceAll("\n", " ")))
      }
      const { byteOffset, byteLength } = decoded.success
      const byteEnd = byteOffset + byteLength
      if (!Number.isSafeInteger(byteEnd)) {
        return Effect.fail(refuse("InvalidHandle", "open", `Byte ${byteOffset} + ${byteLength} exceeds 2^53.`))
      }
      const opened = addon.openMemory(
        handle.pid,
        BigInt(handle.processStart),
        handle.descriptor,
        BigInt(handle.inode),
        byteEnd,
        true,
        shared
      )
      if (opened.code !== "Ok") return Effect.fail(failureOf("open", opened))
      const { memory, address, buffer } = opened.value
      const file: StorageFile = {
        pid: handle.pid,
        processStart: handle.processStart,
        descriptor: handle.descriptor,
        inode: BigInt(handle.inode),
        byteOffset
      }
      const region = new HostRegion(address + BigInt(byteOffset), undefined, shared, () => {
        addon.closeMemory(memory, buffer)
      })
      return Effect.succeed(
        makeStorage({
          device: cpu,
          address: address + BigInt(byteOffset),
          byteLength,
          bytes: new Uint8Array(buffer!, byteOffset, byteLength),
          sharing: region,
          // What is written to a private mapping is not in the file.
          ...(shared ? { file } : {}),
          release: () => region.free()
        })
      )
    })

  const scoped = (storage: Effect.Effect<Storage, HostMemoryError>) =>
    Effect.acquireRelease(storage, (acquired) => Effect.sync(acquired.free))

  return {
    allocate: (byteLength) => scoped(allocateStorage(byteLength)),
    share,
    open: (handle) => scoped(openStorage(handle, false)),
    openShared: (handle) => scoped(openStorage(handle, true))
  }
})

/** Fails with "Unavailable" where the addon cannot be loaded. */
export const layer: Layer.Layer<HostMemory, BackendError> = Layer.effect(HostMemory, Effect.flatMap(loadAddon, make))
