// SPDX-License-Identifier: Apache-2.0
/**
 * Replay slots on one device: copies on a queue of their own, whose events signal when they are done.
 *
 * Invariants: a start is one native call. Host memory that goes away while a copy reads it goes after the copy, for which
 * whoever frees it waits. A stream that is not one of this device's queues is served by a wait of the host: an event
 * of one context means nothing to another.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { ReplayTransferTiming, replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import type { ReplayCopy, ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import {
  type ReplayStream,
  type ReplayTransferAttributes,
  type ReplayTransferBackend,
  type ReplayTransferError,
  replayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import { type Device, formatDevice } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import { makeHostProof } from "@tensorferry/native/HostProof"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { type NativeJob, startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { backendName, loadAddon, type NativeCopy, workQueue } from "./Addon.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import { replayFailure } from "./failures.ts"
import type { XpuOptions } from "./options.ts"
import { openXpu, type Xpu } from "./Xpu.ts"

/** The queue in which the engine of a device works, as a stream that waits on the device itself; also the default. */
export const engineStream = (device: Device): ReplayStream => ({ device, handle: 0n })

/** How long freeing host memory waits for a copy that reads it. */
const revokeMilliseconds = 10_000

/** First byte. */
const addressIn = (tensor: Tensor): number => Number(tensor.storage.address) + tensor.byteOffset

const mismatch = (slot: number, tensor: Tensor, detail: string): ReplayTransferError =>
  replayTransferError("DeviceMismatch", {
    backend: backendName,
    op: "submitH2d",
    slot,
    detail: `The ${tensor.dtype} tensor on ${formatDevice(tensor.device)}: ${detail}`,
    remedy: "Allocate device slots by this backend or its engine, and host slots as memory whose bytes the host sees."
  })

const freedSource = (slot: number, detail: string): ReplayTransferError =>
  replayTransferError("FreedStorage", {
    backend: backendName,
    op: "submitH2d",
    slot,
    detail,
    remedy: "Keep the scope that allocated the host slot open, and its buffer in this thread, until the slot is ready."
  })

const copyOf = (xpu: Xpu, slot: number, native: NativeCopy, source: Tensor): ReplayCopy => {
  const { addon } = xpu
  const { storage } = source
  const lastByte = source.byteOffset + tensorByteLength(source)
  const failed = (failure: NativeFailure) => replayFailure("copy", slot, failure)
  let waiting: NativeJob<undefined> | undefined
  let stopWatching: (() => void) | undefined
  /** The source was freed before the copy ended: nobody knows which bytes it read. */
  let isTorn = false

  const onFreed = (): void => {
    if (xpu.isClosed() || addon.isCopyDone(native) === true) return
    // Bytes that somebody lent are kept alive by this tensor; other memory may go away as soon as this returns.
    const isLent = storage.sharing === undefined
    const finished = isLent ? undefined : addon.finishCopy(native, revokeMilliseconds)
    isTorn = finished?.code !== "Ok" || !finished.value
  }

  const judged = (): ReplayTransferError | undefined =>
    isTorn ? freedSource(slot, "The source was freed before its copy ended.") : undefined

  const isDone = (): boolean | ReplayTransferError => {
    const answer = addon.isCopyDone(native)
    if (answer === false) return false
    stopWatching?.()
    stopWatching = undefined
    return answer === true ? (judged() ?? true) : failed(answer)
  }

  const wait: ReplayCopy["wait"] = Effect.suspend(() => {
    const done = isDone()
    if (done === true) return Effect.void
    if (done !== false) return Effect.fail(done)
    if (waiting === undefined) {
      const started = startJob<undefined>(
        addon,
        (answered) => addon.startWait(native, answered),
        () => {
          waiting = undefined
        }
      )
      if (Result.isFailure(started)) return Effect.fail(failed(started.failure))
      waiting = started.success
    }
    // All that wait share one native wait; who is interrupted leaves the others theirs.
    return Effect.flatMap(Effect.mapError(waiting.await, failed), () => {
      const torn = judged()
      return torn === undefined ? Effect.void : Effect.fail(torn)
    })
  })

  return {
    start: () => {
      // Shorter than it was: transferred to another thread, or a resizable buffer shrank.
      if (storage.bytes!.byteLength < lastByte)
        return Effect.fail(freedSource(slot, "The source's buffer was detached or made shorter."))
      isTorn = false
      const failure = addon.startCopy(native)
      if (failure !== undefined) return Effect.fail(failed(failure))
      xpu.copyStarted()
      stopWatching ??= storage.onRevoke(onFreed)
      return undefined
    },
    isDone,
    wait,
    streamWait: (stream) =>
      stream !== undefined && stream.handle !== 0n
        ? wait
        : Effect.suspend(() => {
            const answer = addon.queueWaits(workQueue, native)
            return answer.code === "Ok" ? Effect.void : Effect.fail(failed(answer))
          }),
    seconds: () => {
      const answer = addon.copySeconds(native)
      return answer.code === "Ok" ? answer.value : undefined
    }
  }
}

/** Replay slots on an open device. `timed` asks for the time of copies. */
export const make = (xpu: Xpu, timed: boolean): ReplayDevice => {
  const { addon, native, device, capabilities } = xpu
  const hostFault = makeHostProof(addon)
  const isTimed = timed && capabilities.timingEvents
  const attributes: ReplayTransferAttributes = {
    device,
    deviceFamily: device.family,
    h2dSubmitter: "xpu_copy_stream",
    hostMemoryKind: "pageable_shared",
    hostPinned: false,
    directPinnedShared: false,
    supportsAsyncSubmit: true,
    supportsTimingEvents: isTimed
  }

  const importSlot = (slot: Tensor, index: number): Effect.Effect<void, ReplayTransferError> =>
    Effect.suspend(() => {
      const answer = addon.importHost(native, addressIn(slot), tensorByteLength(slot))
      if (answer.code === "Ok") return Effect.void
      return Effect.fail(replayFailure("registerHostSlots", index, answer, "RegistrationFailed"))
    })

  return {
    attributes: () => attributes,
    // Without the capability there is nothing to tell the driver: it takes host memory as it is.
    register: (slot, index) => {
      if (!capabilities.hostPointerImport || tensorByteLength(slot) === 0) return Effect.void
      return Effect.asVoid(
        // Also a copy whose end could not be asked for may still read it. What does not end keeps it until the device closes.
        Effect.acquireRelease(importSlot(slot, index), () =>
          Effect.map(xpu.settled, (isSettled) => {
            if (isSettled && !xpu.isClosed()) addon.releaseHost(native, addressIn(slot), tensorByteLength(slot))
          })
        )
      )
    },
    allocate: (shape, dtype) =>
      Effect.flatMap(
        Effect.mapError(xpu.allocate(byteLengthOf(dtype, elementCount(shape))), (failure) =>
          replayFailure("allocateDeviceSlots", undefined, failure)
        ),
        (storage) =>
          Effect.mapError(Effect.fromResult(tensorView(storage, dtype, shape)), ({ detail }) =>
            replayTransferError("ShapeMismatch", {
              backend: backendName,
              op: "allocateDeviceSlots",
              detail: `${detail}.`,
              remedy: "Correct the shape."
            })
          )
      ),
    prepare: (slot, destination, source) =>
      Effect.suspend(() => {
        const region = destination.storage.sharing
        if (!(region instanceof DeviceRegion && region.xpu.native === native)) {
          return Effect.fail(mismatch(slot, destination, "its memory is not of this open device."))
        }
        const fault = hostFault(source.storage)
        if (fault?.tag === "FreedStorage") return Effect.fail(freedSource(slot, fault.detail))
        if (fault !== undefined) return Effect.fail(mismatch(slot, source, fault.detail))
        const prepared = addon.prepareCopy(
          native,
          addressIn(destination),
          addressIn(source),
          tensorByteLength(source),
          isTimed
        )
        return prepared.code === "Ok"
          ? Effect.succeed(copyOf(xpu, slot, prepared.value, source))
          : Effect.fail(replayFailure("submitH2d", slot, prepared))
      })
  }
}

/** Opens the device; its memory and that of its engine can be used together. */
export const open = Effect.fnUntraced(function* (
  device: Device,
  options: XpuOptions
): Effect.fn.Return<ReplayDevice, BackendError, EffectScope.Scope> {
  const isTimed = options.timing ?? (yield* ReplayTransferTiming)
  return make(yield* openXpu(yield* loadAddon, options, device.index), isTimed)
})

/**
 * A ring of `ringDepth` slots on one device, released with the layer's scope. It fails with BackendError where the
 * driver is missing or the device refuses the memory.
 */
export const layer = (
  device: Device,
  ringDepth: number,
  options: XpuOptions = {}
): Layer.Layer<ReplayTransferBackend, BackendError> =>
  replayTransferLayer(open(device, options), { ringDepth, backend: backendName })
