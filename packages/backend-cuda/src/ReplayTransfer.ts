// SPDX-License-Identifier: Apache-2.0
/**
 * The replay backend of NVIDIA and AMD devices: opens the device that is asked for and serves core's slots with it.
 */
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { ReplayTransferTiming, replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import type { ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import type { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { type Device, formatDevice } from "@tensorferry/core/tensor/Device"
import { loadAddon, packageName, type Vendor } from "@tensorferry/gpu/Addon"
import { makeDeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import { unavailableBecause } from "@tensorferry/gpu/failures"
import { openGpu } from "@tensorferry/gpu/Gpu"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"
import type { CudaOptions } from "./options.ts"
import { makeReplayDevice } from "./ReplayDevice.ts"
import { openReplayQueue, type ReplayQueue, type ReplayWay, replayWay } from "./ReplayQueue.ts"

/** A device that `open` opened for replay. */
export interface OpenReplay {
  readonly device: ReplayDevice
  /** The streams behind it, for consumers on the device and for measurements. */
  readonly queue: ReplayQueue
}

/** The options with the device that is asked for, unless they name another. */
export const optionsFor = (
  device: Device,
  options: CudaOptions,
  backend: string
): Effect.Effect<CudaOptions, BackendError> => {
  const isOther =
    (options.vendor !== undefined && options.vendor !== device.family) ||
    (options.device !== undefined && options.device !== device.index)
  return isOther
    ? Effect.fail(
        backendError("InvalidOptions", {
          backend,
          op: "replay transfer",
          detail: `The options name ${options.vendor ?? device.family}:${options.device ?? device.index}, the request ${formatDevice(device)}.`,
          remedy: "Leave the options `vendor` and `device` out, or make them agree with the device."
        })
      )
    : Effect.succeed({ ...options, vendor: device.family as Vendor, device: device.index })
}

/** Opens a device with streams and events for this many slots. */
export const open = Effect.fnUntraced(function* (
  device: Device,
  slots: number,
  options: CudaOptions = {},
  backend: string = packageName,
  way?: ReplayWay
): Effect.fn.Return<OpenReplay, BackendError, EffectScope.Scope> {
  const chosen = yield* optionsFor(device, options, backend)
  const gpu = yield* openGpu(yield* loadAddon, backend, chosen)
  const isTimed = options.timing ?? (yield* ReplayTransferTiming)
  const queue = yield* Effect.mapError(openReplayQueue(gpu, slots, way ?? { ...replayWay, isTimed }), (failure) =>
    unavailableBecause(backend, failure)
  )
  const memory = makeDeviceMemory(gpu, { arenaBytes: options.arenaBytes })
  return { device: makeReplayDevice(queue, memory), queue }
})

/**
 * A backend of `ringDepth` slots on this device. Fails with InvalidOptions where the options name another device, and
 * with Unavailable where the device cannot be opened.
 */
export const layer = (
  device: Device,
  ringDepth: number,
  options: CudaOptions = {},
  backend?: string
): Layer.Layer<ReplayTransferBackend, BackendError> =>
  replayTransferLayer(
    Effect.map(open(device, ringDepth, options, backend), (opened) => opened.device),
    { ringDepth }
  )
