// SPDX-License-Identifier: Apache-2.0
/** Why a fleet cannot be planned, joined or brought to a version. Every reason names the thing and says what to do. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

/** What kept a fleet from doing what was asked. */
export const FleetReason = Schema.Union([
  /** A topology that contradicts itself: a rank on two hosts, a host without links. */
  reason("InvalidTopology"),
  /** A rank that takes part and that no host of the topology has. */
  reason("UnknownRank"),
  /** Nobody holds what somebody wants. */
  reason("NoSource"),
  /** An update was given up; the old version stays. The members who kept it from being committed are named. */
  reason("UpdateAborted"),
  /** This member serves no version now: it has none, is not admitted, has lost the store, or is changing versions. */
  reason("NotServing"),
  /** What came from another member is not what the version says. */
  reason("NotProven"),
  /** Tensors that do not fit the version, or settings that cannot be. */
  reason("InvalidOptions"),
  /** Another member did not do its part in time, or is gone. */
  reason("PeerFailed"),
  /** A store without the fleet that was asked for, or a history without the version. */
  reason("NotFound"),
  /** Something did not happen in time. */
  reason("DeadlineExceeded")
])
export type FleetReason = typeof FleetReason.Type

/** The error of this package, with the ranks that it is about. */
export class FleetError extends ReasonError<FleetError>()("FleetError", FleetReason, {
  /** Ranks that the failure is about; empty where it is about none. */
  ranks: Schema.Array(Schema.Int)
}) {}

/** Makes the error of this reason; `ranks` are those that the failure is about. */
export const fleetError = (tag: FleetReason["_tag"], ranks: ReadonlyArray<number>, input: ReasonInput): FleetError =>
  new FleetError({ reason: reasonOf(tag, input), ranks: [...ranks] })
