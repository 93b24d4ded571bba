// SPDX-License-Identifier: Apache-2.0
/**
 * Owned memory: an address range on a device with a generation that no other range of the process ever had.
 *
 * Caches of anything derived from memory (mappings, compiled programs) key on the generation, never on an address:
 * allocators hand out the same address again. Freeing first revokes what others made of the memory, newest first, so
 * that nobody keeps a mapping of memory that is gone.
 */
import type { Device } from "./Device.ts"

/** Where memory lies in a memory file of a process: whoever sees that process can map it too. */
export interface StorageFile {
  readonly pid: number
  /** Clock ticks from boot to the start of the process, so that a later one of this number is not taken for it. */
  readonly processStart: string
  /** Number of the open file in that process. */
  readonly descriptor: number
  /** Of the file, so that a descriptor that was used again is noticed. */
  readonly inode: bigint
  /** Of the storage's first byte. */
  readonly byteOffset: number
}

/** Owned memory: an address range on a device, until it is freed. */
export interface Storage {
  /** Where the memory is. */
  readonly device: Device
  /** First byte, in the address space of this process or of the device. */
  readonly address: bigint
  /** Bytes of the whole storage. */
  readonly byteLength: number
  /** Unique in this process for ever. */
  readonly generation: number
  /** The bytes, where the host may touch them; device storage is only a handle. */
  readonly bytes?: Uint8Array
  /** What a host-memory backend needs to hand this memory to other processes. Opaque to core. */
  readonly sharing?: unknown
  /** For memory of another process that is mapped here: the file that it is. */
  readonly file?: StorageFile
  /** For memory that another process can take away: what has become of it, undefined while it is whole. */
  readonly fault?: () => string | undefined
  /** True once the engine has given the memory back; then nobody may touch it. */
  readonly isFreed: () => boolean
  /** Registers what must be undone before the memory goes away; returns how to unregister it. */
  readonly onRevoke: (revoke: () => void) => () => void
  /** Revokes, then releases. Later calls do nothing. Called by the scope that allocated the storage. */
  readonly free: () => void
}

let lastGeneration = 0

/** What an engine states about memory that it allocated. */
export interface StorageInput extends Omit<Storage, "generation" | "isFreed" | "onRevoke" | "free"> {
  /** Gives the memory back. Runs once, after all revocations. */
  readonly release: () => void
}

/** Wraps memory that an engine allocated. */
export const makeStorage = ({ release, ...stated }: StorageInput): Storage => {
  let freed = false
  const revocations = new Set<() => void>()
  return {
    ...stated,
    generation: ++lastGeneration,
    isFreed: () => freed,
    onRevoke: (revoke) => {
      revocations.add(revoke)
      return () => {
        revocations.delete(revoke)
      }
    },
    free: () => {
      if (freed) return
      freed = true
      for (const revoke of [...revocations].reverse()) revoke()
      revocations.clear()
      release()
    }
  }
}
