// SPDX-License-Identifier: Apache-2.0
/** Why an update failed outside of the copy service: the plan, the tensors given for it, or a transform. */
import * as Schema from "effect/Schema"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"

/** Which step of an update failed. */
export const ReshardReason = Schema.Union([
  /** The plan breaks its own rules or is for another rank. */
  reason("InvalidPlan"),
  /** The plan names a tensor that was not given. */
  reason("TensorMissing"),
  /** A tensor differs in shape or type from what the plan was made for. */
  reason("TensorMismatch"),
  /** An alias does not share the storage that it should. */
  reason("AliasMismatch"),
  reason("TransformFailed"),
  reason("WritebackFailed"),
  /** Ranks could not exchange what they hold. */
  reason("ExchangeFailed")
])
export type ReshardReason = typeof ReshardReason.Type

/** Why a plan could not be carried out on this rank: the parameter, the operation and a remedy. */
export class ReshardError extends ReasonError<ReshardError>()("ReshardError", ReshardReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const reshardError = (tag: ReshardReason["_tag"], input: ReasonInput): ReshardError =>
  new ReshardError({ reason: reasonOf(tag, input) })
