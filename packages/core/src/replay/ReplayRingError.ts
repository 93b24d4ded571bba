// SPDX-License-Identifier: Apache-2.0
/** Why a replay ring cannot be made, opened, written or read. */
import * as Schema from "effect/Schema"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"

/** What is wrong with a ring, its memory, or a request to it. */
export const ReplayRingReason = Schema.Union([
  /** Columns, capacity or memory with which no ring can be made. */
  reason("InvalidLayout"),
  /** The memory holds no ring, one of another version, or one whose numbers do not fit the memory. */
  reason("InvalidRing"),
  /** The ring's memory was freed. */
  reason("RingFreed"),
  /** Another live process, or another writer of this one, writes the ring. */
  reason("OwnedByOther"),
  /** The ring is not, or no longer, this writer's. */
  reason("NotOwner"),
  reason("InvalidRequest"),
  /** No row is complete yet. */
  reason("RingEmpty"),
  /** Positions went backwards or contradict each other: something else writes to the ring's memory. */
  reason("RingTorn"),
  /** Rows were overwritten as fast as they could be read. */
  reason("Overwritten")
])
export type ReplayRingReason = typeof ReplayRingReason.Type

/** Why a replay ring was refused, or rows could not be written or read. */
export class ReplayRingError extends ReasonError<ReplayRingError>()("ReplayRingError", ReplayRingReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const replayRingError = (tag: ReplayRingReason["_tag"], input: ReasonInput): ReplayRingError =>
  new ReplayRingError({ reason: reasonOf(tag, input) })
