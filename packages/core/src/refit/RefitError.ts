// SPDX-License-Identifier: Apache-2.0
/** Why a refit session refused or failed. Refusals change nothing. */
import * as Schema from "effect/Schema"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"

/** Kinds of `RefitError`. */
export const RefitReason = Schema.Union([
  /** The session's own description cannot work. */
  reason("InvalidSpec"),
  /** An update is open already; its identity is named. */
  reason("AlreadyOpen"),
  /** No update is open, or not the one that was named. */
  reason("NotOpen"),
  /** A patch was made for other weights than those that are here. */
  reason("WrongBase"),
  /** The session does not know the tensor. */
  reason("UnknownTensor"),
  /** A tensor has another shape, type or form than the session takes. */
  reason("TensorMismatch"),
  /** The same elements were added before. */
  reason("DuplicateRegion"),
  /** Nothing was added. */
  reason("EmptyUpdate"),
  /** Elements of a full update are missing. */
  reason("IncompleteUpdate"),
  /** Nothing of an expected group was added. */
  reason("GroupMissing"),
  /** An alias came with other values than the tensor that it stands for. */
  reason("AliasMismatch"),
  /** The content is not what the sender says it is. */
  reason("DigestMismatch"),
  /** There are no weights that may be used. */
  reason("NotReady"),
  /** Sleeping or waking where that has no meaning. */
  reason("WrongState"),
  /** Weights that readers use did not become free in time. */
  reason("DeadlineExceeded"),
  /** Pausing, writing, rebuilding or resuming failed. */
  reason("CommitFailed")
])
export type RefitReason = typeof RefitReason.Type

/** Why an update of weights in use was refused or failed; its scope says whether the old version still serves. */
export class RefitError extends ReasonError<RefitError>()("RefitError", RefitReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const refitError = (tag: RefitReason["_tag"], input: ReasonInput): RefitError =>
  new RefitError({ reason: reasonOf(tag, input) })

/** A failure of something else, as one of the session. */
export const causedBy =
  (tag: RefitReason["_tag"], paramName?: string) =>
  (error: { readonly message: string }): RefitError =>
    refitError(tag, {
      ...(paramName === undefined ? {} : { paramName }),
      detail: error.message,
      remedy: "See the failure that caused it."
    })
