// SPDX-License-Identifier: Apache-2.0
/**
 * Why a replay pipeline has no batch. Each reason's text begins with the tick; the slot has a field of its own.
 */
import * as Schema from "effect/Schema"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { ReplayTransferError } from "../service/ReplayTransferBackend.ts"

/** What failed on a batch's way from the ring to the device. */
export const ReplayPipelineReason = Schema.Union([
  /** Nobody serves pack requests any more. */
  reason("CollectorGone"),
  /** The ring's header contradicts itself. */
  reason("RingTorn"),
  /** The writer overwrites rows faster than they can be packed. */
  reason("Overwritten"),
  /** The batch could not be packed for another reason, such as an empty ring. */
  reason("PackFailed"),
  /** The copy to the device failed. */
  reason("TransferFailed"),
  /** The call does not fit the pipeline's state. */
  reason("WrongState"),
  reason("DeadlineExceeded")
])
export type ReplayPipelineReason = typeof ReplayPipelineReason.Type

/** Why a batch was not prepared or taken: the tick, the slot and a remedy. */
export class ReplayPipelineError extends ReasonError<ReplayPipelineError>()(
  "ReplayPipelineError",
  ReplayPipelineReason
) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const replayPipelineError = (tag: ReplayPipelineReason["_tag"], input: ReasonInput): ReplayPipelineError =>
  new ReplayPipelineError({ reason: reasonOf(tag, input) })

/** A failure of one batch. */
export const batchError = (
  tag: ReplayPipelineReason["_tag"],
  { tick, slot }: { readonly tick: number; readonly slot: number },
  input: Omit<ReasonInput, "slot">
): ReplayPipelineError => replayPipelineError(tag, { ...input, slot, detail: `Tick ${tick}: ${input.detail}` })

/** A call that does not fit the pipeline's state. */
export const wrongState = (op: string, detail: string, remedy: string): ReplayPipelineError =>
  replayPipelineError("WrongState", { op, detail, remedy })

/** A call, or a preparation, after the scope of the pipeline has ended. */
export const pipelineClosed = (op: string, tick: number): ReplayPipelineError =>
  wrongState(op, `Tick ${tick}: the pipeline is closed.`, "Keep the pipeline's scope open while it is used.")

/** A failure of the backend while it served a batch. */
export const transferFailed = (
  batch: { readonly tick: number; readonly slot: number },
  { reason: { _tag, ...fields } }: ReplayTransferError
): ReplayPipelineError =>
  batchError(_tag === "DeadlineExceeded" ? "DeadlineExceeded" : "TransferFailed", batch, {
    ...(fields.backend === undefined ? {} : { backend: fields.backend }),
    op: fields.op ?? "submitH2d",
    detail: `${_tag}: ${fields.detail}`,
    remedy: fields.remedy,
    isRetryable: fields.isRetryable
  })
