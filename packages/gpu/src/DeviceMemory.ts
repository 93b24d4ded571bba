// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of one device: small tensors share blocks, large ones have one each; memory that others allocated takes part too.
 *
 * Invariants: freed memory is used again only after the work that ran when it was freed; a block goes back to the driver
 * only when nothing lies in it and no other process may have it mapped. One empty block is kept for the next small tensor.
 */

import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { type TensorError, tensorError } from "@tensorferry/core/service/TensorEngine"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { describeFailure } from "@tensorferry/native/describeFailure"
import { type FreeList, makeFreeList } from "@tensorferry/native/FreeList"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type { AllocatedMemory, ExportedMemory } from "./Addon.ts"
import { packageName } from "./Addon.ts"
import type { Sharing } from "./Block.ts"
import { type Block, nextBlockNumber } from "./Block.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import { makeForeignMemory } from "./ForeignMemory.ts"
import { tensorFailure } from "./failures.ts"
import type { Gpu } from "./Gpu.ts"
import { makeSharing } from "./Sharing.ts"
import { makeShutdownBarrier, type ShutdownBarrier } from "./ShutdownBarrier.ts"

/** Storages start at multiples of this, as the vendors' own allocators give. */
export const alignment = 256

const defaultArenaBytes = 64 * 2 ** 20

/** How the memory of a device is divided. */
export interface DeviceMemoryOptions {
  /** Bytes that small tensors share at a time; those from a quarter of it on have a block of their own. */
  readonly arenaBytes?: number | undefined
}

/** Memory of one device, in arenas that are kept while anything in them is used. */
export interface DeviceMemory {
  /** Memory with unspecified contents, freed by the scope. */
  readonly allocate: (byteLength: number) => Effect.Effect<Storage, TensorError, EffectScope.Scope>
  /**
   * Memory that somebody else allocated in this process, on any of its devices, and keeps until the scope is closed and
   * the next preparation of a job that used it is over. Never freed here.
   */
  readonly foreignStorage: (
    address: bigint,
    byteLength: number
  ) => Effect.Effect<Storage, TensorError, EffectScope.Scope>
  /** Memory of another process, by the 64 bytes that it exported; mapped until the scope ends. */
  readonly importStorage: (
    handle: Uint8Array,
    byteOffset: number,
    byteLength: number
  ) => Effect.Effect<Storage, TensorError, EffectScope.Scope>
  /** What the ranks of a group may know of this memory by drivers of this name; outlives these drivers. */
  readonly sharingWith: (group: ProcessGroupShape, driver: string) => Sharing
  /** How ranks part that may have this memory mapped. */
  readonly shutdown: ShutdownBarrier
  /** What is held at present, for tests and reports. */
  readonly blocks: () => { readonly count: number; readonly byteLength: number }
}

/** A block that this package allocated. */
interface OwnBlock extends Block {
  readonly free: FreeList
  readonly isDedicated: boolean
}

/** What a handle for a block would be, asked once. */
const exporter = (gpu: Gpu, address: bigint) => {
  let known: Result.Result<ExportedMemory, string> | undefined
  return () => {
    const answer = known === undefined ? gpu.addon.exportMemory(gpu.native, address) : undefined
    if (answer !== undefined) {
      known = answer.code === "Ok" ? Result.succeed(answer.value) : Result.fail(describeFailure(answer))
    }
    return known!
  }
}

/** The memory of an opened device. Nothing is allocated before the first request. */
export const makeDeviceMemory = (gpu: Gpu, options: DeviceMemoryOptions = {}): DeviceMemory => {
  const { addon, native, device } = gpu
  const arenaBytes = Math.ceil((options.arenaBytes ?? defaultArenaBytes) / alignment) * alignment
  const dedicatedBytes = arenaBytes / 4
  const blocks = new Set<OwnBlock>()
  const sharings = new WeakMap<ProcessGroupShape, Map<string, Sharing>>()
  const growing = Semaphore.makeUnsafe(1)
  const foreign = makeForeignMemory(gpu)

  const makeBlock = ({ memory, address }: AllocatedMemory, byteLength: number, isDedicated: boolean): OwnBlock => {
    const free = makeFreeList(byteLength, alignment)
    let isRetired = false
    const block: OwnBlock = {
      number: nextBlockNumber(),
      address: Number(address),
      byteLength,
      free,
      isDedicated,
      sharings: new Set(),
      exported: exporter(gpu, address),
      isEmpty: free.isEmpty,
      isSpare: () =>
        !isDedicated && !isRetired && ![...blocks].some((other) => other !== block && isIdle(other, false)),
      retire: () => {
        isRetired = true
        blocks.delete(block)
      },
      reclaim: () => {
        if (!free.isEmpty() || block.sharings.size > 0 || block.isSpare()) return
        block.retire()
        if (!gpu.isClosed()) addon.freeMemory(memory)
      }
    }
    blocks.add(block)
    return block
  }

  const isIdle = (block: OwnBlock, isDedicated: boolean): boolean =>
    block.isDedicated === isDedicated && block.free.isEmpty()

  const sliceOf = (block: OwnBlock, byteLength: number): Storage | undefined => {
    const byteOffset = block.free.take(byteLength)
    if (byteOffset === undefined) return undefined
    const address = BigInt(block.address + byteOffset)
    return makeStorage({
      device,
      address,
      byteLength,
      sharing: new DeviceRegion(address, gpu.vendor, gpu.ordinal, block),
      // What runs now may still use the memory.
      release: () =>
        gpu.whenDone(() => {
          block.free.give(byteOffset, byteLength)
          block.reclaim()
        })
    })
  }

  const outOfMemory = (byteLength: number, detail: string): TensorError => {
    const kept = [...blocks].filter((block) => block.free.isEmpty()).reduce((sum, block) => sum + block.byteLength, 0)
    return tensorError("OutOfMemory", {
      backend: packageName,
      op: "allocate",
      detail:
        `${byteLength} bytes: ${detail}` +
        (kept === 0 ? "" : ` ${kept} bytes are empty and kept because other ranks may have them mapped.`),
      remedy: "Free tensors, or ask for less; another process may use the device too."
    })
  }

  const grow = (byteLength: number, isDedicated: boolean): Effect.Effect<OwnBlock, TensorError> =>
    gpu
      .run<AllocatedMemory>((done) => addon.startAllocate(native, byteLength, done))
      .pipe(
        Effect.mapBoth({
          onFailure: (failure) =>
            failure.code === "OutOfMemory"
              ? outOfMemory(byteLength, describeFailure(failure))
              : tensorFailure("allocate", failure),
          onSuccess: (allocated) => makeBlock(allocated, byteLength, isDedicated)
        })
      )

  /** The smallest block that was left empty because peers may know it, if it is not much too large. */
  const idleFor = (byteLength: number): OwnBlock | undefined => {
    let best: OwnBlock | undefined
    for (const block of blocks) {
      const fits = isIdle(block, true) && block.byteLength >= byteLength && block.byteLength <= byteLength * 1.25
      if (fits && block.byteLength < (best?.byteLength ?? Number.POSITIVE_INFINITY)) best = block
    }
    return best
  }

  const sliceOfShared = (byteLength: number): Storage | undefined => {
    for (const block of blocks) {
      const storage = block.isDedicated ? undefined : sliceOf(block, byteLength)
      if (storage !== undefined) return storage
    }
    return undefined
  }

  const allocateStorage = (byteLength: number): Effect.Effect<Storage, TensorError> => {
    if (!Number.isSafeInteger(byteLength) || byteLength < 0 || byteLength > Number.MAX_SAFE_INTEGER - alignment) {
      return Effect.fail(outOfMemory(byteLength, "not a number of bytes up to 2^53."))
    }
    return Effect.suspend(() => {
      if (byteLength >= dedicatedBytes) {
        const idle = idleFor(byteLength)
        if (idle !== undefined) return Effect.succeed(sliceOf(idle, byteLength)!)
        const wanted = Math.ceil(byteLength / alignment) * alignment
        return Effect.map(grow(wanted, true), (block) => sliceOf(block, byteLength)!)
      }
      const storage = sliceOfShared(byteLength)
      if (storage !== undefined) return Effect.succeed(storage)
      // One at a time: whoever waited may find room in the block that the other made.
      return growing.withPermits(1)(
        Effect.suspend(() => {
          const found = sliceOfShared(byteLength)
          if (found !== undefined) return Effect.succeed(found)
          return Effect.map(grow(arenaBytes, false), (block) => sliceOf(block, byteLength)!)
        })
      )
    })
  }

  const scoped = (storage: Effect.Effect<Storage, TensorError>) =>
    Effect.acquireRelease(storage, (acquired) => Effect.sync(acquired.free))

  return {
    allocate: (byteLength) => scoped(allocateStorage(byteLength)),
    foreignStorage: (address, byteLength) =>
      scoped(Effect.suspend(() => Effect.fromResult(foreign.wrap(address, byteLength)))),
    importStorage: (handle, byteOffset, byteLength) =>
      scoped(Effect.suspend(() => Effect.fromResult(foreign.open(handle, byteOffset, byteLength)))),
    sharingWith: (group, driver) => {
      const ofGroup = sharings.get(group) ?? new Map<string, Sharing>()
      const sharing = ofGroup.get(driver) ?? makeSharing()
      sharings.set(group, ofGroup.set(driver, sharing))
      return sharing
    },
    shutdown: makeShutdownBarrier(),
    blocks: () => ({
      count: blocks.size,
      byteLength: [...blocks].reduce((sum, block) => sum + block.byteLength, 0)
    })
  }
}
