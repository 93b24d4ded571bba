// SPDX-License-Identifier: Apache-2.0
/** Why a ring on a device refuses a request, or could not carry it out. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import * as Schema from "effect/Schema"

/** Kinds of `DeviceRingError`. */
export const DeviceRingReason = Schema.Union([
  /** Columns, capacity or the column of episodes with which no ring can be made. */
  reason("InvalidLayout"),
  /** A request that does not fit the ring, or a batch of another form. */
  reason("InvalidRequest"),
  /** No row is committed yet, or none that is not about to be overwritten. */
  reason("RingEmpty"),
  /** The rows that are there hold too few windows within an episode, or none has a weight. */
  reason("NothingToDraw"),
  /** The words of the ring contradict each other: something else writes to its memory. */
  reason("RingTorn"),
  /** The device did not end its work in time. */
  reason("DeadlineExceeded"),
  /** The device has no memory for the ring or a batch. */
  reason("OutOfMemory"),
  /** The device failed, or an earlier failure left the ring in an unknown state. */
  reason("DeviceFailed")
])
export type DeviceRingReason = typeof DeviceRingReason.Type

/** Why a ring on a device refused a request or failed at it. */
export class DeviceRingError extends ReasonError<DeviceRingError>()("DeviceRingError", DeviceRingReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const deviceRingError = (tag: DeviceRingReason["_tag"], input: ReasonInput): DeviceRingError =>
  new DeviceRingError({ reason: reasonOf(tag, input) })

const reasons: Record<TensorError["reason"]["_tag"], DeviceRingReason["_tag"]> = {
  OutOfMemory: "OutOfMemory",
  FreedStorage: "InvalidRequest",
  InvalidRequest: "InvalidRequest",
  Unsupported: "InvalidRequest",
  DeviceFailure: "DeviceFailed"
}

/** What an engine's failure means for a ring. */
export const ofEngine =
  (op: string) =>
  ({ reason: { _tag, ...fields } }: TensorError): DeviceRingError =>
    deviceRingError(reasons[_tag], { ...fields, op })
