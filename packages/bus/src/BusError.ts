// SPDX-License-Identifier: Apache-2.0
/** Why a command of the tensor bus failed: as the agent reports it, and as the client gets it. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

/** Why a command failed. Replies carry the tag by name; a tag that this version lacks becomes `ServiceFailed`. */
export const BusReason = Schema.Union([
  /** A name, number or combination that a command cannot have. */
  reason("InvalidCommand"),
  /** Bytes of a payload that say nothing usable; nothing was executed. */
  reason("InvalidPayload"),
  /** A tensor that this agent cannot use. */
  reason("UnsupportedTensor"),
  /** Memory that a payload names cannot be opened. */
  reason("MemoryUnavailable"),
  reason("PairExists"),
  reason("UnknownPair"),
  /** Ranks state different things about one pair. */
  reason("PairMismatch"),
  /** Ranks of one pair run on different hosts. */
  reason("HostsDiffer"),
  /** A rank of the pair is gone; make the pair again. */
  reason("PairBroken"),
  reason("BatchExists"),
  reason("UnknownBatch"),
  /** A rank dropped the batch, as its client exited or cleaned it up; the error names its agent. */
  reason("BatchGone"),
  /** Ranks registered different tensors under one batch, or transfer different batches. */
  reason("BatchMismatch"),
  /** Ranks state different versions of a batch's contents. */
  reason("VersionMismatch"),
  /** The target of the direction is to hold unreduced contributions. */
  reason("PartialTarget"),
  /** Ranks that did not come before the deadline. */
  reason("RemoteMissing"),
  reason("TransferFailed"),
  /** A checkpoint that is not there, or that the agent may not or cannot read. */
  reason("CheckpointUnreadable"),
  /** Files of a checkpoint that are cut short, damaged, or contradict each other. */
  reason("CheckpointDamaged"),
  /** Names, shapes or types of a checkpoint that are not those of the tensors that it is to fill. */
  reason("CheckpointMismatch"),
  /** The agent stops. */
  reason("Stopping"),
  /** The agent's heartbeat is missing. */
  reason("AgentGone"),
  /** No completion before the client's deadline. */
  reason("DeadlineExceeded"),
  /** The queue, the state or the store failed. */
  reason("ServiceFailed")
])
export type BusReason = typeof BusReason.Type

/** Why a command of the tensor bus failed: the reason, what it is about, and what its reader can do. */
export class BusError extends ReasonError<BusError>()("BusError", BusReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const busError = (tag: BusReason["_tag"], input: ReasonInput): BusError =>
  new BusError({ reason: reasonOf(tag, input) })

const isReason = Schema.is(BusReason)

/** The error of a reply; one of a newer agent keeps its message. */
export const busErrorFrom = (tag: string, fields: ReasonInput): BusError => {
  const given = reasonOf(tag, fields)
  return isReason(given)
    ? new BusError({ reason: given })
    : busError("ServiceFailed", { ...fields, detail: `${tag}: ${fields.detail}` })
}
