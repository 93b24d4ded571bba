// SPDX-License-Identifier: Apache-2.0
/**
 * What the addon and the engine's checks report about replay copies, as errors that name the slot and a remedy.
 */

import {
  type ReplayTransferError,
  type ReplayTransferReason,
  replayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import { packageName } from "@tensorferry/gpu/Addon"
import { describeFailure } from "@tensorferry/native/describeFailure"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"

const remedies: Partial<Record<ReplayTransferReason["_tag"], string>> = {
  ShapeMismatch: "Give dense tensors: copy the slice into a slot of its own first.",
  DeviceMismatch:
    "Allocate device slots with this backend or the engine of the same device, and host slots on the host.",
  FreedStorage: "Keep the scope that allocated the storage open while it is used.",
  RegistrationFailed: "Raise the limit of locked memory (`ulimit -l`), register less, or leave the slots unregistered."
}

const slotOf = (slot: number | undefined) => (slot === undefined ? {} : { slot })

/** A request that this device cannot serve. */
export const refused = (
  tag: ReplayTransferReason["_tag"],
  op: string,
  detail: string,
  slot?: number
): ReplayTransferError =>
  replayTransferError(tag, {
    backend: packageName,
    op,
    detail,
    remedy: remedies[tag] ?? "Correct the request.",
    ...slotOf(slot)
  })

/** A failure of the device or the driver. */
export const replayFailure = (
  op: string,
  failure: NativeFailure,
  slot?: number,
  tag: ReplayTransferReason["_tag"] = "DeviceFailure"
): ReplayTransferError =>
  replayTransferError(tag, {
    backend: packageName,
    op,
    detail: describeFailure(failure),
    remedy:
      remedies[tag] ??
      (failure.code === "Cancelled" || failure.code === "InvalidHandle"
        ? "The backend was closed; build it again."
        : "Look up the native code; after a failure of the device the process must be started again."),
    ...slotOf(slot),
    ...(failure.nativeCode === 0 ? {} : { nativeCode: failure.nativeCode })
  })

/** An engine's objection to memory of a slot. */
export const memoryObjection = (op: string, { reason }: TensorError, slot?: number): ReplayTransferError =>
  refused(reason._tag === "FreedStorage" ? "FreedStorage" : "DeviceMismatch", op, reason.detail, slot)

/** An engine's failure to allocate a slot. */
export const allocationFailure = ({ reason }: TensorError): ReplayTransferError =>
  replayTransferError("DeviceFailure", {
    backend: packageName,
    op: "allocateDeviceSlots",
    detail: reason.detail,
    remedy: reason.remedy,
    ...(reason.nativeCode === undefined ? {} : { nativeCode: reason.nativeCode })
  })
