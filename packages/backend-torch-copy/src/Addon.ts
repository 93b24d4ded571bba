// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use.
 */
import type { DoorbellControl } from "@tensorferry/native/driver/PeerFlags"
import {
  type AddonIdentity,
  addonLoader,
  type Done,
  type NativeAnswer,
  type NativeHandle
} from "@tensorferry/native/NativeAddon"
import type { JobControl, NativeJobHandle, NativePool, PoolControl } from "@tensorferry/native/NativeJob"

/** Name of this backend in errors and reports. */
export const backendName = "torch-copy"

export type NativeMemoryHandle = NativeHandle<"memory">

export interface NativeMemory {
  readonly memory: NativeMemoryHandle
  readonly address: bigint
  readonly byteLength: number
  /** -1 for memory of another process. */
  readonly descriptor: number
  readonly inode: bigint
  /** Present where JavaScript may touch the bytes. */
  readonly buffer?: ArrayBuffer
}

export interface NativeIdentity {
  readonly pid: number
  readonly processStart: bigint
  /** Equal for processes that can name each other by number. */
  readonly space: string
  readonly cookieAddress: bigint
  readonly cookie: Uint8Array
}

export interface Addon extends AddonIdentity, JobControl, PoolControl, DoorbellControl {
  readonly codes: ReadonlyArray<string>
  readonly instructionSet: string
  /** `refuseOverlap` answers InvalidArgument where dense regions of this process would race. */
  readonly startMoves: (
    pool: NativePool,
    table: BigUint64Array,
    refuseOverlap: boolean,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** Ends when they are done; only moves within this process, and memory that is mapped into it. */
  readonly runMoves: (table: BigUint64Array) => NativeAnswer<undefined>
  readonly startReduce: (
    pool: NativePool,
    table: BigUint64Array,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  readonly startQuantize: (
    pool: NativePool,
    table: BigUint64Array,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  readonly startProduct: (
    pool: NativePool,
    table: BigUint64Array,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** Steps of a replay ring, one after the other. */
  readonly startRing: (pool: NativePool, table: BigUint64Array, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Gives the number of changes found, or the place of a position that cannot be taken: -1 where all were written. */
  readonly startChanges: (pool: NativePool, table: BigUint64Array, done: Done<number>) => NativeAnswer<NativeJobHandle>
  /** Gives both halves of the digest of each part, the low one first. */
  readonly startDigest: (
    pool: NativePool,
    table: BigUint64Array,
    done: Done<BigUint64Array>
  ) => NativeAnswer<NativeJobHandle>
  readonly startCreateMemory: (
    pool: NativePool,
    byteLength: number,
    done: Done<NativeMemory>
  ) => NativeAnswer<NativeJobHandle>
  readonly closeMemory: (memory: NativeMemoryHandle, buffer: ArrayBuffer | undefined) => NativeAnswer<undefined>
  /**
   * Exposed bytes can be written: for all who map the memory where `shared`, else for this process alone. What is not
   * exposed may be a file that its owner can make shorter: see `memoryCuts`.
   */
  readonly openMemory: (
    pid: number,
    processStart: bigint,
    descriptor: number,
    inode: bigint,
    byteEnd: number,
    expose: boolean,
    shared: boolean
  ) => NativeAnswer<NativeMemory>
  /** Whether the memory's file was found to be shorter than its mapping; what is missing reads as zeros. */
  readonly isMemoryCut: (memory: NativeMemoryHandle) => NativeAnswer<boolean>
  /** How often that happened to any memory. */
  readonly memoryCuts: () => NativeAnswer<number>
  readonly identity: () => NativeAnswer<NativeIdentity>
  readonly processStart: (pid: number) => NativeAnswer<bigint>
  readonly addressOf: (bytes: Uint8Array) => NativeAnswer<bigint>
  readonly readProcess: (pid: number, address: bigint, into: Uint8Array) => NativeAnswer<undefined>
}

const loader = addonLoader<Addon>(backendName, import.meta.url, 7)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load

/** As `loadAddon`, of a package in another folder. */
export const loadAddonFrom = loader.loadFrom
