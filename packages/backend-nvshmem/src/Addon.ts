// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use, and the addon loads
 * on any Linux machine: the library is opened by `openLibrary`, never linked.
 */
import type { NativeStreamCalls } from "@tensorferry/gpu/Addon"
import {
  type AddonIdentity,
  addonLoader,
  type Done,
  type NativeAnswer,
  type NativeHandle
} from "@tensorferry/native/NativeAddon"
import type { JobControl, NativeJobHandle } from "@tensorferry/native/NativeJob"

/** Name of this package's backend, also in errors. */
export const packageName = "nvshmem"

export type NativeLibrary = NativeHandle<"nvshmem library">
export type NativeSession = NativeHandle<"nvshmem session">
export type NativeExchange = NativeHandle<"nvshmem exchange">

/** What became of the library: `library`, `path` and `version` where it was opened, else `problem`. */
export interface OpenedLibrary {
  readonly tried: ReadonlyArray<string>
  readonly library?: NativeLibrary
  readonly path?: string
  readonly version?: string
  readonly problem?: string
}

/** Kinds of calls in a program; see exchange.h for the words that follow. */
export const callKinds = { put: 1, signal: 2, wait: 3 } as const

export interface Addon extends AddonIdentity, JobControl {
  /** Opens the first name that serves; reports what it tried. Never fails for a missing library. */
  readonly openLibrary: (names: ReadonlyArray<string>) => NativeAnswer<OpenedLibrary>
  /** 128 bytes, for all PEs of a job that is to begin. */
  readonly createUniqueId: (library: NativeLibrary) => NativeAnswer<Uint8Array>
  /**
   * Joins a job; ends when all PEs have. Cancelling stops the wait, not the library, which is then not usable any more.
   * Fails with AlreadyExists where the process has another part in a job.
   */
  readonly startJoin: (
    library: NativeLibrary,
    runtime: ReadonlyArray<string>,
    driver: ReadonlyArray<string>,
    ordinal: number,
    uniqueId: Uint8Array,
    rank: number,
    size: number,
    done: Done<NativeSession>
  ) => NativeAnswer<NativeJobHandle>
  /** A block that all PEs have at the same place; ends when all have it. Fails with OutOfMemory on all. */
  readonly startAllocate: (
    session: NativeSession,
    byteLength: number,
    done: Done<bigint>
  ) => NativeAnswer<NativeJobHandle>
  /** Ends when all PEs have left; gives all memory back. */
  readonly startLeave: (session: NativeSession, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Never uses the session again, without the library's knowledge. */
  readonly abandon: (session: NativeSession) => NativeAnswer<undefined>
  /** Where an address of the symmetric heap lies at a PE, as kernels here can reach it; 0 where they cannot. */
  readonly pointerTo: (session: NativeSession, address: bigint, pe: number) => NativeAnswer<bigint>
  /** `slots`: how many batches may arrive at a time. `calls` goes to programs of the GPU's addon. */
  readonly createExchange: (
    session: NativeSession,
    address: bigint,
    byteLength: number,
    slots: number
  ) => NativeAnswer<{ readonly exchange: NativeExchange; readonly calls: NativeStreamCalls }>
  /** The run that calls belong to from now on. */
  readonly setRun: (exchange: NativeExchange, run: number) => NativeAnswer<undefined>
  /** Ends when all that this PE sent has arrived. */
  readonly startQuiet: (exchange: NativeExchange, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Sets this PE's words to zero. */
  readonly startReset: (exchange: NativeExchange, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Makes the run fail on the others. */
  readonly startDecline: (exchange: NativeExchange, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  readonly closeExchange: (exchange: NativeExchange) => NativeAnswer<undefined>
}

const loader = addonLoader<Addon>(packageName, import.meta.url, 1)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load
