// SPDX-License-Identifier: Apache-2.0
/** Failures of the `replay` commands that are neither the pipeline's, nor the ring's, nor a backend's. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

export const ReplayReason = Schema.Union([
  reason("CollectorFailed"),
  /** A batch holds other bytes than the collector wrote. */
  reason("WrongRows")
])
export type ReplayReason = typeof ReplayReason.Type

export class ReplayError extends ReasonError<ReplayError>()("ReplayError", ReplayReason) {}

export const replayError = (tag: ReplayReason["_tag"], input: ReasonInput): ReplayError =>
  new ReplayError({ reason: reasonOf(tag, input) })
