// SPDX-License-Identifier: Apache-2.0
/** Failures of records of runs: written, read, and shown. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

export const ReportReason = Schema.Union([
  /** A file is not a record of a run; the detail names the field. */
  reason("InvalidRecord"),
  /** A record of a version that this one does not know. */
  reason("UnknownVersion")
])
export type ReportReason = typeof ReportReason.Type

export class ReportError extends ReasonError<ReportError>()("ReportError", ReportReason, {
  /** The field that is wrong, as `ranks[2].memory.peak`; empty for the whole file. */
  field: Schema.String
}) {}

export const reportError = (tag: ReportReason["_tag"], field: string, input: ReasonInput): ReportError =>
  new ReportError({ reason: reasonOf(tag, input), field })
