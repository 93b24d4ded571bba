// SPDX-License-Identifier: Apache-2.0
/**
 * Replay copies by a `TensorEngine`, off the JS thread: this package's for host memory, the family's own for the memory of
 * other device families. Host slots are pageable; nothing is registered.
 *
 * Invariant: nothing is under way but what a submission, or a consumer's wait, is making; its interruption stops it.
 */
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import type { ReplayCopy, ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import {
  type ReplayTransferBackend,
  type ReplayTransferError,
  type ReplayTransferReason,
  replayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import {
  TensorEngine,
  type TensorEngineShape,
  type TensorError,
  type TensorReason,
  tensorError
} from "@tensorferry/core/service/TensorEngine"
import { type Device, formatDevice } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"
import { backendName } from "./Addon.ts"
import { pinsOf } from "./checks.ts"
import type { TorchCopyOptions } from "./options.ts"
import { pinAll } from "./PinCount.ts"
import * as HostEngine from "./TensorEngine.ts"

/** When the simulated device copies. */
export interface ReplayDeviceOptions {
  /** Copies are made by the consumer's wait: for devices that take work from one thread only. */
  readonly deferred?: boolean
}

/** The layer has checked shapes and types; what an engine still finds wrong with a request is whose memory it is. */
const reasons: Record<TensorReason["_tag"], ReplayTransferReason["_tag"]> = {
  OutOfMemory: "DeviceFailure",
  FreedStorage: "FreedStorage",
  InvalidRequest: "DeviceMismatch",
  Unsupported: "DeviceMismatch",
  DeviceFailure: "DeviceFailure"
}

const failureOf =
  (op: string, slot?: number) =>
  ({ reason: { _tag, ...fields } }: TensorError): ReplayTransferError =>
    replayTransferError(reasons[_tag], { ...fields, op, ...(slot === undefined ? {} : { slot }) })

/** A device over an engine that serves its family. */
export const make = (engine: TensorEngineShape, device: Device, options: ReplayDeviceOptions = {}): ReplayDevice => {
  const deferred = options.deferred ?? false
  const op = "submitH2d"

  /** Engines of other families reach host memory that they wrapped themselves, and do not know whose it is: it is pinned. */
  const copyWrapped = (slot: number, dst: Tensor, src: Tensor): Effect.Effect<void, ReplayTransferError> =>
    Effect.suspend(() => {
      const { bytes } = src.storage
      if (bytes === undefined) {
        return Effect.fail(
          replayTransferError("DeviceMismatch", {
            backend: backendName,
            op,
            slot,
            detail: "The host tensor shows no bytes to the host.",
            remedy: "Allocate host slots with HostMemory or an engine of the host."
          })
        )
      }
      const copy = Effect.gen(function* () {
        const storage = yield* engine.wrapHost(bytes)
        const wrapped = tensorView(storage, src.dtype, src.shape, { strides: src.strides, byteOffset: src.byteOffset })
        const view = yield* Effect.orDie(Effect.fromResult(wrapped))
        yield* engine.copy([{ dst, src: view }])
        // The pin keeps the memory mapped. Where it is another storage's too, its owner may have given it to somebody else.
        if (src.storage.isFreed()) {
          return yield* tensorError("FreedStorage", {
            op,
            detail: "The storage of the host slot was freed during its copy.",
            remedy: "Keep the scope that allocated the slot open until the slot is ready."
          })
        }
      })
      return Effect.acquireUseRelease(
        Effect.sync(() => pinAll(pinsOf([src]))),
        () => Effect.mapError(Effect.scoped(copy), failureOf(op, slot)),
        (unpin) => Effect.sync(unpin)
      )
    })

  const copyOf = (slot: number, dst: Tensor, src: Tensor): ReplayCopy => {
    // One list for good: the engine knows it again and does not check it twice.
    const moves = [{ dst, src }]
    const copy =
      device.family === src.device.family
        ? Effect.mapError(engine.copy(moves), failureOf(op, slot))
        : copyWrapped(slot, dst, src)
    return {
      start: () => copy,
      isDone: () => true,
      wait: Effect.void,
      streamWait: () => Effect.void,
      seconds: () => undefined
    }
  }

  return {
    isDeferred: deferred,
    attributes: () => ({
      device,
      deviceFamily: device.family,
      h2dSubmitter: deferred ? "torch_copy_deferred" : "torch_copy",
      hostMemoryKind: "pageable_shared",
      hostPinned: false,
      directPinnedShared: false,
      supportsAsyncSubmit: false,
      supportsTimingEvents: false
    }),
    register: () => Effect.void,
    allocate: (shape: Shape, dtype: DType) =>
      Effect.mapError(engine.allocate(dtype, shape, device), failureOf("allocateDeviceSlots")),
    prepare: (slot, destination, source) => Effect.succeed(copyOf(slot, destination, source))
  }
}

const unavailable = (detail: string, remedy: string): BackendError =>
  backendError("Unavailable", { backend: backendName, op: "replayTransfer", scope: "service", detail, remedy })

/** The device, once its engine has proven that there is one. */
export const open = Effect.fnUntraced(function* (
  engineLayer: Layer.Layer<TensorEngine, BackendError>,
  device: Device,
  options: ReplayDeviceOptions
): Effect.fn.Return<ReplayDevice, BackendError, EffectScope.Scope> {
  const engine = Context.get(yield* Layer.build(engineLayer), TensorEngine)
  const where = formatDevice(device)
  if (!engine.deviceFamilies.includes(device.family)) {
    return yield* unavailable(
      `No registered backend has a TensorEngine for device family ${device.family}.`,
      "Register a package that serves the family, or choose another device."
    )
  }
  yield* Effect.mapError(Effect.scoped(engine.allocate("uint8", [0], device)), ({ reason }) =>
    unavailable(`${where} cannot be used: ${reason.detail}`, "Choose a device that this machine has.")
  )
  return make(engine, device, options)
})

/** The engine that copies: this package's for host memory, the family's own for others. */
export const engineFor = (
  device: Device,
  options: TorchCopyOptions,
  familyEngine?: Layer.Layer<TensorEngine, BackendError>
): Layer.Layer<TensorEngine, BackendError> => {
  const hostEngine = HostEngine.layer(options.threads === undefined ? {} : { threads: options.threads })
  return device.family === "cpu" ? hostEngine : (familyEngine ?? hostEngine)
}

/**
 * The portable replay backend. `familyEngine` copies for families other than `cpu`; without one they are unavailable.
 */
export const layer = (
  device: Device,
  ringDepth: number,
  options: TorchCopyOptions = {},
  familyEngine?: Layer.Layer<TensorEngine, BackendError>
): Layer.Layer<ReplayTransferBackend, BackendError> =>
  replayTransferLayer(open(engineFor(device, options, familyEngine), device, options), {
    ringDepth,
    backend: backendName
  })
