// SPDX-License-Identifier: Apache-2.0
/**
 * What the addon and the drivers report, as the errors of the services: which thing failed and what to do.
 */
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import {
  type ReplayTransferError,
  type ReplayTransferReason,
  replayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import { type TensorError, tensorError } from "@tensorferry/core/service/TensorEngine"
import { describeFailure } from "@tensorferry/native/describeFailure"
import { refusalOf } from "@tensorferry/native/MoveChecks"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { backendName } from "./Addon.ts"

export const refusal = refusalOf(backendName)

const nativeCodeOf = ({ nativeCode }: NativeFailure) => (nativeCode === 0 ? {} : { nativeCode })

const remedyOf = ({ code }: NativeFailure): string => {
  if (code === "OutOfMemory") return "Free tensors, or ask for less; another process may use the device too."
  if (code === "Cancelled" || code === "InvalidHandle") return "The device was closed; build the layer again."
  return "Look up the native code; after a failure of the device the process must be started again."
}

/** A failure of work on tensors. */
export const tensorFailure = (op: string, failure: NativeFailure): TensorError => {
  if (failure.code === "InvalidArgument") return refusal("InvalidRequest", op, describeFailure(failure))
  return tensorError(failure.code === "OutOfMemory" ? "OutOfMemory" : "DeviceFailure", {
    backend: backendName,
    op,
    detail: describeFailure(failure),
    remedy: remedyOf(failure),
    ...nativeCodeOf(failure)
  })
}

/** A failure of a replay slot; other tags than "DeviceFailure" where the caller knows better. */
export const replayFailure = (
  op: string,
  slot: number | undefined,
  failure: NativeFailure,
  tag: ReplayTransferReason["_tag"] = "DeviceFailure"
): ReplayTransferError =>
  replayTransferError(tag, {
    backend: backendName,
    op,
    ...(slot === undefined ? {} : { slot }),
    detail: describeFailure(failure),
    remedy: remedyOf(failure),
    ...nativeCodeOf(failure)
  })

/** A failure to set up what a layer needs. */
export const unavailable = (detail: string, remedy: string, nativeCode = 0): BackendError =>
  backendError("Unavailable", {
    backend: backendName,
    op: "open device",
    detail,
    remedy,
    scope: "service",
    ...(nativeCode === 0 ? {} : { nativeCode })
  })

export const unavailableBecause = (failure: NativeFailure): BackendError =>
  unavailable(
    describeFailure(failure),
    "Run `tensorferry doctor`; look up the native code in the driver's documentation.",
    failure.nativeCode
  )
