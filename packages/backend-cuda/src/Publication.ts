// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks publish before a transfer: who they are, where their parts lie, and what peers must release. JSON,
 * with the list for each peer as a text of its own, so that a rank decodes only what concerns it.
 *
 * Invariant: what a peer says is decoded here before anything uses it; numbers are exact, addresses below 2^53. That a
 * region lies inside its memory is checked where the memory is known.
 */
import { CopyDriverReason } from "@tensorferry/core/service/CopyDriver"
import { decodeOutcome, decodeText, encodeText } from "@tensorferry/native/driver/Outcome"
import { Natural } from "@tensorferry/native/driver/PeerList"
import { ProcessIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

import { directionPreferences } from "./planning/direction.ts"

export const PublishedSettings = Schema.Struct({
  process: ProcessIdentity,
  /** Identity of the device, the same for all processes of the machine. */
  deviceUuid: Schema.String.check(Schema.isMaxLength(256)),
  ordinal: Natural,
  direction: Schema.Literals(directionPreferences),
  stagingBytes: Natural,
  directBytes: Natural,
  hasCollectives: Schema.Boolean,
  /** Counts the communicators of the group; 0 for none that works. */
  connection: Natural,
  /** Blocks that peers must let go of. */
  revoked: Schema.Array(Natural),
  /** The last publication whose revocations were carried out here. */
  carriedOut: Natural
})
export type PublishedSettings = typeof PublishedSettings.Type

const Head = Schema.Struct({
  settings: PublishedSettings,
  /** Encoded lists by rank. */
  lists: Schema.Record(Schema.String, Schema.String),
  /** Why this rank cannot take part; then there are no lists. */
  fault: Schema.NullOr(CopyDriverReason)
})

export interface Publication {
  readonly settings: PublishedSettings
  /** Encoded `PeerList`s by rank. */
  readonly lists: ReadonlyMap<number, string>
  readonly fault: CopyDriverReason | null
}

export const encodePublication = (publication: Publication): Uint8Array =>
  encodeText({ ...publication, lists: Object.fromEntries(publication.lists) })

const decodeHead = decodeText(Head)

export const decodePublication = (bytes: Uint8Array): Result.Result<Publication, string> =>
  Result.map(decodeHead(bytes), (head) => ({
    ...head,
    lists: new Map(Object.entries(head.lists).map(([rank, list]) => [Number(rank), list]))
  }))

/** What the end of a flow found that looked for the memory of the other end, `peer`. */
export const Finding = Schema.Struct({
  peer: Natural,
  /** True where `peer` sends. */
  isReceiving: Schema.Boolean,
  reached: Schema.Union([
    Schema.TaggedStruct("Reached", { name: Schema.Literals(["same-process", "ipc"]), reason: Schema.String }),
    Schema.TaggedStruct("Unreached", { why: Schema.String })
  ])
})
export type Finding = typeof Finding.Type

export const decodeFindings = decodeOutcome(Schema.Array(Finding))

/** Whether a rank pushes or is pushed to. */
export const decodePushes = decodeOutcome(Schema.Boolean)
