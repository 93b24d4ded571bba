// SPDX-License-Identifier: Apache-2.0
/**
 * What PEs publish in a preparation. What a peer sends is decoded here before anything uses it.
 */

import { decodeOutcome } from "@tensorferry/native/driver/Outcome"
import { Natural } from "@tensorferry/native/driver/PeerList"
import { ProcessIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Schema from "effect/Schema"

/** What a PE says of itself and of its messages. */
export const Statement = Schema.Struct({
  process: ProcessIdentity,
  ordinal: Natural,
  slotBytes: Natural,
  slots: Natural,
  /** Names the job that this PE has a part in; empty for none. */
  job: Schema.String.check(Schema.isMaxLength(256)),
  /** Runs that were begun since the words were zero. */
  runs: Natural,
  /** A run of this PE did not end well. */
  mustReset: Schema.Boolean,
  /** Encoded lists of parts, by peer. */
  lists: Schema.Record(Schema.String, Schema.String)
})
export type Statement = typeof Statement.Type

export const decodeStatement = decodeOutcome(Statement)

/** What a PE sends to one peer: batches in the order in which both ends pack them. */
export const SentBatches = Schema.Struct({
  peer: Natural,
  isDirect: Schema.Boolean,
  byteLengths: Schema.Array(Natural)
})
export type SentBatches = typeof SentBatches.Type

/** What a PE sends, and where others may write at once. */
export const Share = Schema.Struct({
  sent: Schema.Array(SentBatches),
  /** Where its block lies, in its own address space. */
  block: Natural,
  /** By peer, the memories of the list for it that receive and lie in the symmetric heap. */
  symmetric: Schema.Record(Schema.String, Schema.Array(Natural))
})
export type Share = typeof Share.Type

export const decodeShare = decodeOutcome(Share)

export const decodeByteLength = decodeOutcome(Natural)
