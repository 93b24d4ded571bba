// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use.
 */
import {
  type AddonIdentity,
  addonLoader,
  type Done,
  type NativeAnswer,
  type NativeHandle
} from "@tensorferry/native/NativeAddon"
import type { JobControl, NativeJobHandle, NativePool, PoolControl } from "@tensorferry/native/NativeJob"

/** Name of this package in errors. */
export const packageName = "bus"

export type NativeQueue = NativeHandle<"queue">
export type NativeFile = NativeHandle<"file">
export type NativeSemaphore = NativeHandle<"semaphore">
export type NativeCompletion = NativeHandle<"completion">
export type NativeTorchMemory = NativeHandle<"torch memory">
export type NativePeerMemory = NativeHandle<"peer memory">

export interface NativeTaken {
  /** The messages, one behind the other. */
  readonly bytes: Uint8Array
  readonly lengths: ReadonlyArray<number>
  /** Entries that were not there; their places are free again. */
  readonly skipped: number
  /** Places of entries that were not what was put there; they are free again. */
  readonly corrupt: ReadonlyArray<number>
}

export interface NativeQueueStatus {
  readonly head: bigint
  readonly tail: bigint
  readonly items: number
  readonly space: number
}

export interface Addon extends AddonIdentity, JobControl, PoolControl {
  /** As an agent it makes the queue or takes it over; as a client it waits for an agent. */
  readonly startOpenQueue: (
    pool: NativePool,
    path: string,
    asAgent: boolean,
    capacity: number,
    mapBytes: number,
    milliseconds: number,
    done: Done<NativeQueue>
  ) => NativeAnswer<NativeJobHandle>
  readonly startEnqueue: (
    pool: NativePool,
    queue: NativeQueue,
    messages: ReadonlyArray<Uint8Array>,
    milliseconds: number,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** A negative time waits for ever. */
  readonly startDequeue: (
    pool: NativePool,
    queue: NativeQueue,
    most: number,
    milliseconds: number,
    done: Done<NativeTaken>
  ) => NativeAnswer<NativeJobHandle>
  readonly startQueueStatus: (
    pool: NativePool,
    queue: NativeQueue,
    done: Done<NativeQueueStatus>
  ) => NativeAnswer<NativeJobHandle>
  /** What was set aside when an agent opened the queue, and why, in a sentence; empty where nothing was. */
  readonly queueSetAside: (queue: NativeQueue) => NativeAnswer<string>
  readonly closeQueue: (queue: NativeQueue, destroy: boolean) => NativeAnswer<undefined>
  readonly startOpenFile: (
    pool: NativePool,
    path: string,
    database: string,
    mapBytes: number,
    make: boolean,
    done: Done<NativeFile>
  ) => NativeAnswer<NativeJobHandle>
  /** Undefined values remove their keys. All or none. Once they are stored the semaphore is posted and its name removed. */
  readonly startPut: (
    pool: NativePool,
    file: NativeFile,
    keys: ReadonlyArray<Uint8Array>,
    values: ReadonlyArray<Uint8Array | undefined>,
    semaphoreName: string | undefined,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  readonly startClear: (pool: NativePool, file: NativeFile, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  readonly startGet: (
    pool: NativePool,
    file: NativeFile,
    keys: ReadonlyArray<Uint8Array>,
    done: Done<ReadonlyArray<Uint8Array | undefined>>
  ) => NativeAnswer<NativeJobHandle>
  /** Makes a semaphore of value 0 for this user only. */
  readonly openCompletion: (semaphoreName: string) => NativeAnswer<NativeCompletion>
  /** Waits for the semaphore, then reads the key. */
  readonly startAwaitCompletion: (
    pool: NativePool,
    completion: NativeCompletion,
    file: NativeFile,
    key: Uint8Array,
    milliseconds: number,
    done: Done<{ readonly isCompleted: boolean; readonly reply?: Uint8Array }>
  ) => NativeAnswer<NativeJobHandle>
  /** Posts the semaphore and removes its name. */
  readonly completeWithoutReply: (semaphoreName: string) => NativeAnswer<undefined>
  /** Removes the name. */
  readonly closeCompletion: (completion: NativeCompletion) => NativeAnswer<undefined>
  /** Makes a new semaphore for this user only, or opens one that this user made. */
  readonly semaphoreOpen: (name: string, create: boolean, initial: number) => NativeAnswer<NativeSemaphore>
  readonly semaphorePost: (semaphore: NativeSemaphore) => NativeAnswer<undefined>
  readonly semaphoreValue: (semaphore: NativeSemaphore) => NativeAnswer<number>
  readonly semaphoreUnlink: (name: string) => NativeAnswer<undefined>
  /** A negative time waits for ever. */
  readonly startSemaphoreWait: (
    semaphore: NativeSemaphore,
    milliseconds: number,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  readonly isFileCurrent: (file: NativeFile) => NativeAnswer<boolean>
  readonly fileSetAside: (file: NativeFile) => NativeAnswer<string>
  readonly closeFile: (file: NativeFile, destroy: boolean) => NativeAnswer<undefined>
  /** The bytes behind PyTorch's header. */
  readonly openTorchMemory: (
    name: string,
    byteLength: number
  ) => NativeAnswer<{ readonly memory: NativeTorchMemory; readonly address: bigint; readonly buffer?: ArrayBuffer }>
  readonly closeTorchMemory: (memory: NativeTorchMemory, buffer: ArrayBuffer) => NativeAnswer<undefined>
  /** Fails with PeerGone where the count was given back before. */
  readonly returnCudaCount: (name: string, index: number) => NativeAnswer<undefined>
  /** Removes a file of counts that a dead process left. */
  readonly removeCudaCounts: (name: string) => NativeAnswer<undefined>
  /** Who connected a Unix socket. */
  readonly peerOf: (socket: number) => NativeAnswer<{ readonly pid: number; readonly isOwnUser: boolean }>
  /** Memory that another process of this user has open under a descriptor. */
  readonly openPeerMemory: (
    pid: number,
    descriptor: number,
    inode: bigint,
    byteLength: number
  ) => NativeAnswer<{ readonly memory: NativePeerMemory; readonly address: bigint; readonly buffer?: ArrayBuffer }>
  readonly closePeerMemory: (memory: NativePeerMemory, buffer: ArrayBuffer) => NativeAnswer<undefined>
  /** Whether the memory's file was found to be shorter than its mapping; what is missing reads as zeros. */
  readonly isPeerMemoryCut: (memory: NativePeerMemory) => NativeAnswer<boolean>
  readonly isTorchMemoryCut: (memory: NativeTorchMemory) => NativeAnswer<boolean>
}

const loader = addonLoader<Addon>(packageName, import.meta.url, 6)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load

/** As `loadAddon`, of a package in another folder. */
export const loadAddonFrom = loader.loadFrom
