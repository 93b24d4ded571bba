// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use, and the addon loads
 * on any Linux machine: the vendors' libraries are opened by `startOpenDriver`, never linked.
 */
import {
  type AddonIdentity,
  addonLoader,
  type Done,
  type NativeAnswer,
  type NativeFailure,
  type NativeHandle
} from "@tensorferry/native/NativeAddon"
import type { JobControl, NativeJobHandle } from "@tensorferry/native/NativeJob"

/** Name of this backend in errors and reports. */
export const backendName = "xpu"

export type NativePlatform = NativeHandle<"platform">
export type NativeDevice = NativeHandle<"device">
export type NativeCopy = NativeHandle<"copy">
export type NativeHold = NativeHandle<"hold">

/** The two ways to a device. */
export type DriverName = "level-zero" | "opencl"

/** What a driver may have beyond the least. */
export const optionalCapabilities = ["pinnedHost", "timingEvents", "hostPointerImport"] as const
export type OptionalCapability = (typeof optionalCapabilities)[number]

/** What was found by trying it on the open device. */
export interface XpuCapabilities extends Readonly<Record<OptionalCapability, boolean>> {
  /** The driver itself keeps the order of a queue; otherwise barriers do. */
  readonly inOrderQueues: boolean
}

export interface DeviceFacts {
  readonly name: string
  readonly kind: "gpu" | "accelerator" | "cpu"
  readonly driverVersion: string
  /** 0 where the driver does not report it. */
  readonly totalBytes: number
  readonly maxAllocationBytes: number
}

/** What became of opening a driver. `platform` where it works, else `problem`; both have what was tried. */
export interface OpenedDriver {
  readonly tried: ReadonlyArray<string>
  readonly path?: string
  readonly problem?: string
  readonly nativeCode: number
  readonly platform?: NativePlatform
  readonly devices: ReadonlyArray<DeviceFacts>
}

export interface OpenedDevice {
  readonly device: NativeDevice
  readonly capabilities: XpuCapabilities
}

/** Replay copies have a queue of their own; everything else is in the other one. */
export const copyQueue = 0
export const workQueue = 1

export interface Addon extends AddonIdentity, JobControl {
  /** Opens the first library of these names that works and lists its devices. Slow the first time. */
  readonly startOpenDriver: (
    driver: DriverName,
    names: ReadonlyArray<string>,
    done: Done<OpenedDriver>
  ) => NativeAnswer<NativeJobHandle>
  /** The device lives until `closeDevice`. */
  readonly startOpenDevice: (
    platform: NativePlatform,
    ordinal: number,
    forbidden: ReadonlyArray<OptionalCapability>,
    done: Done<OpenedDevice>
  ) => NativeAnswer<NativeJobHandle>
  /** Releases holds, cancels what runs, waits for what was submitted and gives everything back. */
  readonly closeDevice: (device: NativeDevice) => NativeAnswer<undefined>

  readonly startAllocate: (
    device: NativeDevice,
    byteLength: number,
    done: Done<bigint>
  ) => NativeAnswer<NativeJobHandle>
  /** Nothing may use the memory any more. */
  readonly startFree: (device: NativeDevice, address: number, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Ends when both queues have done all that was submitted before. */
  readonly startDrain: (device: NativeDevice, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /**
   * Does a table of moves (see core's MoveTable) between memory of this device and of the host, which stays until the job
   * has ended. Batches of a device run one after another.
   */
  readonly startMoves: (
    device: NativeDevice,
    table: BigUint64Array,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** Lets the device reach host memory without copies by the driver; a range is imported once. */
  readonly importHost: (device: NativeDevice, address: number, byteLength: number) => NativeAnswer<undefined>
  readonly releaseHost: (device: NativeDevice, address: number, byteLength: number) => NativeAnswer<undefined>
  /** Address of the first byte. Fails with InvalidArgument for a detached buffer. */
  readonly addressOf: (bytes: Uint8Array) => NativeAnswer<bigint>

  /** A copy into memory of the device that is started again and again; `timed` asks for `copySeconds`. */
  readonly prepareCopy: (
    device: NativeDevice,
    destination: number,
    source: number,
    byteLength: number,
    timed: boolean
  ) => NativeAnswer<NativeCopy>
  /** Submits it; `undefined` where that went well. Copies are done in the order of their submission. */
  readonly startCopy: (copy: NativeCopy) => NativeFailure | undefined
  /** Of the last start; true before it. */
  readonly isCopyDone: (copy: NativeCopy) => boolean | NativeFailure
  readonly copySeconds: (copy: NativeCopy) => NativeAnswer<number | undefined>
  /** Ends when the last start's copy has. Cancelling ends the wait, not the copy. */
  readonly startWait: (copy: NativeCopy, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Keeps the JS thread waiting for the copy, so long at most; answers whether it has ended. */
  readonly finishCopy: (copy: NativeCopy, milliseconds: number) => NativeAnswer<boolean>
  /** What is submitted to the queue from now on begins after the copy. */
  readonly queueWaits: (queue: number, copy: NativeCopy) => NativeAnswer<undefined>
  /** What is submitted to the queue from now on does not begin before the hold ends: for tests of waiting. */
  readonly holdQueue: (device: NativeDevice, queue: number) => NativeAnswer<NativeHold>
  /** With `fails`, what waits for the hold fails; only OpenCL knows that. */
  readonly endHold: (hold: NativeHold, fails: boolean) => NativeAnswer<undefined>
}

const loader = addonLoader<Addon>(backendName, import.meta.url, 1)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load

/** As `loadAddon`, of a package in another folder. */
export const loadAddonFrom = loader.loadFrom
