// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use, and the addon loads
 * on any Linux machine: the vendor's libraries are opened by `openLibraries`, never linked.
 */
import {
  type AddonIdentity,
  addonLoader,
  type Done,
  type NativeAnswer,
  type NativeHandle
} from "@tensorferry/native/NativeAddon"
import type { JobControl, NativeJobHandle } from "@tensorferry/native/NativeJob"

/** Name of this package in errors of the addon; drivers use their own. */
export const packageName = "cuda"

/** The libraries of one vendor, as `openLibraries` opened them. */
export type NativeLibraries = NativeHandle<"libraries">
/** A device with its streams and kernels, until `closeDevice`. */
export type NativeDevice = NativeHandle<"device">
/** Memory that the addon allocated, of the device or pinned on the host, until it is freed. */
export type NativeMemory = NativeHandle<"memory">
/** An allocation of another process, mapped until `closeImport`. */
export type NativeMapping = NativeHandle<"mapping">
/** A range of host memory that a device reaches directly, until it is unpinned. */
export type NativePin = NativeHandle<"pin">
/** One rank's end of a NCCL or RCCL communicator, until `closeCommunicator`. */
export type NativeCommunicator = NativeHandle<"communicator">
/** A table of steps that was checked, with all that it needs on the device, until `closeProgram`. */
export type NativeProgram = NativeHandle<"program">
/** Of another addon, which takes the calls of a program: see stream_calls.h. */
export type NativeStreamCalls = NativeHandle<"stream calls">
/** The streams and events of one replay ring, until `closeReplay`. */
export type NativeReplay = NativeHandle<"replay">
/** The addon's half of a `PreparedReplayCopy`. */
export type NativeReplayCopy = NativeHandle<"replay copy">

/** Whose names a set of libraries has. */
export type Vendor = "cuda" | "rocm"

/** File names or paths to try, in order, for each library. */
export interface LibraryNames {
  readonly runtime: ReadonlyArray<string>
  readonly driver: ReadonlyArray<string>
  readonly compiler: ReadonlyArray<string>
  /** Empty where no collectives are wanted. */
  readonly collectives: ReadonlyArray<string>
}

/** What became of one library: `path` and `version` where it was opened, else `problem`. */
export interface LibraryFound {
  readonly tried: ReadonlyArray<string>
  readonly path?: string
  readonly version?: string
  readonly problem?: string
}

/** What became of each library of one vendor. */
export interface OpenedLibraries {
  /** Absent where runtime or driver could not be opened. */
  readonly libraries?: NativeLibraries
  readonly runtime: LibraryFound
  readonly driver: LibraryFound
  readonly compiler: LibraryFound
  readonly collectives: LibraryFound
}

/** What the driver says of one device. */
export interface DeviceFacts {
  readonly name: string
  /** Hexadecimal, without dashes. */
  readonly uuid: string
  /** Place on the PCI bus, as the vendor's tools write it. */
  readonly busId: string
  readonly totalBytes: number
  /** At the moment of the question. */
  readonly freeBytes: number
  /** Multiprocessors of NVIDIA, compute units of AMD. */
  readonly processors: number
  /** 90 for compute capability 9.0; `gfx` number for AMD. */
  readonly architecture: number
}

/** How a device is opened. */
export interface DeviceOptions {
  /** Folder for compiled kernels, owner-only; none keeps them in memory. */
  readonly kernelCache?: string
  /** Blocks of a batch of moves; by default all the device runs at once. */
  readonly blocks?: number
}

/** New memory and the address of its first byte, on the device or, where it is pinned, on the host. */
export interface AllocatedMemory {
  readonly memory: NativeMemory
  readonly address: bigint
}

/** What another process needs to map an allocation: the vendor's IPC handle, and what it covers. */
export interface ExportedMemory {
  /** 64 bytes that another process opens. */
  readonly handle: Uint8Array
  /** First byte of the allocation that the handle names, and its length: what a mapping shows. */
  readonly base: bigint
  readonly byteLength: number
}

/** A mapped allocation and the address of its first byte in this process. */
export interface ImportedMemory {
  readonly mapping: NativeMapping
  readonly address: bigint
}

/** Microseconds between the events of a span, by span number; see StepTable. */
export type SpanTimes = Float64Array

/**
 * A prepared copy of host memory to the device as functions that answer numbers: the vendor's own, or one of
 * `replayAnswers`. They never wait and make no object.
 */
export interface PreparedReplayCopy {
  /** The addon's handle, to be started once for each batch. */
  readonly copy: NativeReplayCopy
  /** Queues the copy and an event behind it. */
  readonly start: () => number
  /** Whether the slot's copy has ended. */
  readonly query: () => number
  /** Seconds of the slot's last copy on the device; negative where there are none. */
  readonly seconds: () => number
}

/** What prepared copies answer; other numbers are failures. */
export const replayAnswers = {
  ok: 0,
  notReady: 600,
  isClosed: -1,
  /** The driver would keep the caller waiting: use `startReplayCopy`. */
  needsThread: -2
} as const

/** What the native addon offers; every call answers with a value or a failure, and none throws. */
export interface Addon extends AddonIdentity, JobControl {
  /** Opens what it can; reports what it tried. Never fails for a missing library. */
  readonly openLibraries: (vendor: Vendor, names: LibraryNames) => NativeAnswer<OpenedLibraries>
  /** Devices that the opened libraries see. */
  readonly deviceCount: (libraries: NativeLibraries) => NativeAnswer<number>
  /** Name, memory and abilities of a device. */
  readonly deviceFacts: (libraries: NativeLibraries, ordinal: number) => NativeAnswer<DeviceFacts>
  /** Whether kernels and copies of one device reach memory of another directly. */
  readonly canAccessPeer: (libraries: NativeLibraries, ordinal: number, peer: number) => NativeAnswer<boolean>
  /** Makes streams and loads kernels, compiling them where no cache has them. The device lives until `closeDevice`. */
  readonly startOpenDevice: (
    libraries: NativeLibraries,
    ordinal: number,
    options: DeviceOptions,
    done: Done<NativeDevice>
  ) => NativeAnswer<NativeJobHandle>
  /** Cancels what runs, waits for it and gives everything back that was made on the device. */
  readonly closeDevice: (device: NativeDevice) => NativeAnswer<undefined>

  /** Memory of the device, rounded up to what its allocator gives. */
  readonly startAllocate: (
    device: NativeDevice,
    byteLength: number,
    done: Done<AllocatedMemory>
  ) => NativeAnswer<NativeJobHandle>
  /** Gives memory of `startAllocate` back, after what still uses it. */
  readonly freeMemory: (memory: NativeMemory) => NativeAnswer<undefined>
  /** Pinned host memory that JavaScript sees as `buffer`. */
  readonly startAllocateHost: (
    device: NativeDevice,
    byteLength: number,
    done: Done<AllocatedMemory & { readonly buffer: ArrayBuffer }>
  ) => NativeAnswer<NativeJobHandle>
  /** Detaches the buffer and frees. */
  readonly freeHostMemory: (memory: NativeMemory, buffer: ArrayBuffer) => NativeAnswer<undefined>
  /** Lets the device reach host memory directly; the same range may be pinned several times. */
  readonly pinHost: (device: NativeDevice, address: bigint, byteLength: number) => NativeAnswer<NativePin>
  /** Undoes one `pinHost`. */
  readonly unpinHost: (pin: NativePin) => NativeAnswer<undefined>
  /** Address of the first byte. Fails with InvalidArgument for a detached buffer. */
  readonly addressOf: (bytes: Uint8Array) => NativeAnswer<bigint>

  /** Fails with Unsupported, naming the reason, for memory that no handle can name, as that of virtual-memory allocators. */
  readonly exportMemory: (device: NativeDevice, address: bigint) => NativeAnswer<ExportedMemory>
  /** Whose memory an address is: the ordinal of its device. Fails with InvalidArgument for other addresses. */
  readonly deviceOfAddress: (device: NativeDevice, address: bigint) => NativeAnswer<number>
  /** Maps the allocation of another process; each import is closed once. */
  readonly importMemory: (device: NativeDevice, handle: Uint8Array) => NativeAnswer<ImportedMemory>
  /** Undoes one `importMemory`. */
  readonly closeImport: (mapping: NativeMapping) => NativeAnswer<undefined>
  /** How far a mapping reaches, as the driver knows it. */
  readonly mappedBytes: (mapping: NativeMapping) => NativeAnswer<number>
  /** Ends when everything that was closed so far is given back. */
  readonly startAwaitReleases: (device: NativeDevice, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Waits for an event of another process, by its 64 bytes. Fails with DeadlineExceeded. */
  readonly startAwaitEvent: (
    device: NativeDevice,
    handle: Uint8Array,
    milliseconds: number,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** Lets kernels of the device touch memory of another device of this process. Again is fine. */
  readonly enablePeer: (device: NativeDevice, peer: number) => NativeAnswer<undefined>

  /** Bytes by which the ranks of a group of collectives find each other; one rank makes them for all. */
  readonly createUniqueId: (libraries: NativeLibraries) => NativeAnswer<Uint8Array>
  /** All ranks of a group connect; ends when all have. Cancelling aborts it. */
  readonly startConnect: (
    device: NativeDevice,
    uniqueId: Uint8Array,
    rank: number,
    size: number,
    done: Done<NativeCommunicator>
  ) => NativeAnswer<NativeJobHandle>
  /** Aborts it if it is in use. */
  readonly closeCommunicator: (communicator: NativeCommunicator) => NativeAnswer<undefined>

  /**
   * Checks a table of steps (see StepTable) with its tables of moves and keeps them with all that they need on the device.
   * Nothing runs yet.
   */
  readonly createProgram: (
    device: NativeDevice,
    steps: BigUint64Array,
    moves: ReadonlyArray<BigUint64Array>,
    communicator: NativeCommunicator | undefined,
    calls?: NativeStreamCalls
  ) => NativeAnswer<NativeProgram>
  /**
   * Runs a program once; programs of a device run one after another. Ends when the device has done everything.
   * Cancelling stops submitting, aborts the communicator if the program uses it, and ends when the device is done.
   */
  readonly startProgram: (program: NativeProgram, done: Done<SpanTimes>) => NativeAnswer<NativeJobHandle>
  /** After its last run has ended. */
  readonly closeProgram: (program: NativeProgram) => NativeAnswer<undefined>
  /** Bytes in which two regions of equal form differ, and the first such element. The table has one move. */
  readonly startCompare: (
    device: NativeDevice,
    move: BigUint64Array,
    done: Done<{ readonly differing: number; readonly first: number }>
  ) => NativeAnswer<NativeJobHandle>

  /** Pins host memory on a thread, as that takes long. Fails with AlreadyExists where others registered a part of it. */
  readonly startRegisterHostSlot: (
    device: NativeDevice,
    address: bigint,
    byteLength: number,
    done: Done<NativePin>
  ) => NativeAnswer<NativeJobHandle>
  /** Closes the pin at once and ends when the memory is unregistered. */
  readonly startUnpinHost: (pin: NativePin, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /**
   * The events of this many slots, which take turns among streams of copies; `copiesPerEvent` share one where more than
   * that are under way on a stream. `stream` is the handle of the one that consumers wait on by default.
   */
  readonly createReplay: (
    device: NativeDevice,
    slots: number,
    streams: number,
    copiesPerEvent: number,
    isTimed: boolean
  ) => NativeAnswer<{ readonly replay: NativeReplay; readonly stream: bigint }>
  /** Waits for copies of the slots, and gives stream and events back. */
  readonly closeReplay: (replay: NativeReplay) => NativeAnswer<undefined>
  /** A copy into a slot that is started again and again. */
  readonly prepareReplayCopy: (
    replay: NativeReplay,
    slot: number,
    destination: bigint,
    source: bigint,
    byteLength: number
  ) => NativeAnswer<PreparedReplayCopy>
  /** Copies on a thread, to the end. */
  readonly startReplayCopy: (copy: NativeReplayCopy, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Waits for the slot's event; cancelling ends the wait only. */
  readonly startReplayWait: (copy: NativeReplayCopy, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Makes later work of a stream, by default the replay object's own, wait for the slot's event. */
  readonly holdStream: (copy: NativeReplayCopy, stream: bigint | undefined) => NativeAnswer<undefined>
  /** Whether all copies queued so far have ended, as `PreparedReplayCopy.query`. */
  readonly replayQuery: (replay: NativeReplay) => NativeAnswer<number>
  /** The failure behind a number; Ok for 0. */
  readonly describeReplayAnswer: (replay: NativeReplay, answer: number) => NativeAnswer<undefined>
  /** Ends when the streams of copies, or the own one, have come to where they stand now. */
  readonly startReplayFence: (
    replay: NativeReplay,
    isOfCopies: boolean,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** Waits here and now until the copies have ended, then unregisters: for memory that goes away right afterwards. */
  readonly revokePin: (replay: NativeReplay, pin: NativePin) => NativeAnswer<undefined>
  /** Waits here and now until the copies started so far have ended, those on threads too. */
  readonly settleReplay: (replay: NativeReplay) => NativeAnswer<undefined>
  /** Queues a copy within the device on the own stream, as a consumer's work. */
  readonly copyOnReplayStream: (
    replay: NativeReplay,
    destination: bigint,
    source: bigint,
    byteLength: number
  ) => NativeAnswer<undefined>
  /** Keeps the streams of copies or the own one busy for a while, for conformance tests. */
  readonly spinReplay: (replay: NativeReplay, isOfCopies: boolean, nanoseconds: number) => NativeAnswer<undefined>
}

const loader = addonLoader<Addon>(packageName, import.meta.url, 2)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load

/** As `loadAddon`, of a package in another folder. */
export const loadAddonFrom = loader.loadFrom
