/**
 * What ranks tell each other before a transfer: where the sender's parts lie. Plain JSON over the process group.
 *
 * Invariant: what a peer says is decoded here before anything uses it; numbers are exact, addresses below 2^53. That a
 * region lies inside its memory is checked where the memory is known.
 */
import { DType } from "@tensorferry/core/base/DType"
import { Part, TaskId } from "@tensorferry/core/base/Ids"
import { Shape } from "@tensorferry/core/base/Region"
import { CopyDriverReason } from "@tensorferry/core/service/CopyDriver"
import { HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import * as Schema from "effect/Schema"

const Natural = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }))
const Digits = Schema.String.check(Schema.isPattern(/^\d{1,20}$/))

export const PublishedPart = Schema.Struct({
  taskId: TaskId,
  part: Part,
  dtype: DType,
  shape: Shape,
  strides: Schema.Array(Natural),
  /** Index into the memories of the same list. */
  memory: Natural,
  byteOffset: Natural
})
export type PublishedPart = typeof PublishedPart.Type

/** One storage: its place in the owner's address space, and its handle where it can be mapped. */
export const PublishedMemory = Schema.Struct({
  address: Natural,
  byteLength: Natural,
  handle: Schema.NullOr(HostMemoryHandle)
})
export type PublishedMemory = typeof PublishedMemory.Type

/** Everything that one rank sends to another. */
export const PeerList = Schema.Struct({
  memories: Schema.Array(PublishedMemory),
  messages: Schema.Array(Schema.Struct({ index: Natural, parts: Schema.Array(PublishedPart) }))
})
export type PeerList = typeof PeerList.Type

/** Who publishes: enough to prove that a process number means this very process. */
export const PublishedProcess = Schema.Struct({
  pid: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 - 1 })),
  processStart: Digits,
  space: Schema.String.check(Schema.isMaxLength(256)),
  cookieAddress: Digits,
  cookie: Schema.String.check(Schema.isPattern(/^[0-9a-f]{32}$/))
})
export type PublishedProcess = typeof PublishedProcess.Type

const Failure = Schema.TaggedStruct("Failed", { reason: CopyDriverReason })

export const Publication = Schema.Union([
  Failure,
  Schema.TaggedStruct("Published", {
    process: PublishedProcess,
    /** A `PeerList` per receiving rank; only its own is decoded there. */
    lists: Schema.Record(Schema.String, Schema.Unknown)
  })
])
export type Publication = typeof Publication.Type

const Path = Schema.Struct({ peer: Natural, path: Schema.String, reason: Schema.String })

/** What came of it on one rank: the paths by which it will fetch. */
export const Outcome = Schema.Union([Failure, Schema.TaggedStruct("Compiled", { paths: Schema.Array(Path) })])
export type Outcome = typeof Outcome.Type

export const encodeJson = (value: Publication | Outcome): Uint8Array => new TextEncoder().encode(JSON.stringify(value))

export const decodePublication = Schema.decodeUnknownResult(Schema.fromJsonString(Publication))
export const decodePeerList = Schema.decodeUnknownResult(PeerList)
export const decodeOutcome = Schema.decodeUnknownResult(Schema.fromJsonString(Outcome))
