// SPDX-License-Identifier: Apache-2.0
/** Why a payload of a command cannot be used: what it holds, and what the client should do instead. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

export const PayloadReason = Schema.Union([
  /** The bytes are cut short, damaged, or larger than any payload. */
  reason("Malformed"),
  /** A pickle that names something that is not on the list, or uses it as it is not used here. Nothing was called. */
  reason("Forbidden"),
  /** A version that this package does not know. */
  reason("UnknownVersion"),
  /** A tensor of a kind that another program cannot use, or of a type that is not known. */
  reason("Unsupported")
])
export type PayloadReason = typeof PayloadReason.Type

export class PayloadError extends ReasonError<PayloadError>()("PayloadError", PayloadReason) {}

export const payloadError = (tag: PayloadReason["_tag"], input: ReasonInput): PayloadError =>
  new PayloadError({ reason: reasonOf(tag, input) })
