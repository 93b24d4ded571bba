/**
 * What ranks tell each other before a transfer: who they are, where their parts lie, and what peers must let go of. JSON,
 * with the list for each peer as a text of its own, so that a rank decodes only what concerns it.
 *
 * Invariant: what a peer says is decoded here before anything uses it; numbers are exact, addresses below 2^53. That a
 * region lies inside its memory is checked where the memory is known.
 */

import { type DType, dtypes } from "@tensorferry/core/base/DType"
import { Natural } from "@tensorferry/core/base/Numbers"
import type { Shape } from "@tensorferry/core/base/Region"
import type { Message } from "@tensorferry/core/ir/Message"
import { CopyDriverReason } from "@tensorferry/core/service/CopyDriver"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { ProcessIdentity } from "./identity.ts"
import { directionPreferences } from "./planning/direction.ts"

/** A piece of memory that peers can open as a whole. */
export const PublishedBlock = Schema.Struct({
  number: Natural,
  /** First byte of what a mapping shows, in the owner's address space. */
  address: Natural,
  byteLength: Natural,
  /** What opens it, in hexadecimal digits; empty where nothing does. */
  handle: Schema.String.check(Schema.isPattern(/^([0-9a-f]{128})?$/)),
  /** Why there is no handle. */
  problem: Schema.String
})
export type PublishedBlock = typeof PublishedBlock.Type

/** One storage: where it lies in the owner's address space, on which of its devices, and in which block of the list. */
export const PublishedMemory = Schema.Struct({
  address: Natural,
  byteLength: Natural,
  ordinal: Natural,
  block: Natural
})
export type PublishedMemory = typeof PublishedMemory.Type

/** One part of a message, as the rank that publishes it holds it. */
export interface PublishedPart {
  readonly taskId: number
  readonly part: number
  readonly dtype: DType
  readonly shape: Shape
  /** In elements. */
  readonly strides: ReadonlyArray<number>
  /** Index into the memories of the same list. */
  readonly memory: number
  /** From the first byte of the memory. */
  readonly byteOffset: number
}

/** One message between the rank that publishes and the peer that gets the list. */
export interface PublishedMessage {
  /** As the publishing rank sees it. */
  readonly direction: Message["direction"]
  /** Both ends give a message the same index. */
  readonly index: number
  readonly parts: ReadonlyArray<PublishedPart>
}

/** Everything that one rank has to do with another. */
export interface PeerList {
  readonly blocks: ReadonlyArray<PublishedBlock>
  readonly memories: ReadonlyArray<PublishedMemory>
  readonly messages: ReadonlyArray<PublishedMessage>
}

/** What a rank declares about itself in each preparation, the same to all peers. */
export const PublishedSettings = Schema.Struct({
  process: ProcessIdentity,
  /** Identity of the device, the same for all processes of the machine. */
  deviceUuid: Schema.String.check(Schema.isMaxLength(256)),
  /** Number of the rank's device within its process. */
  ordinal: Natural,
  direction: Schema.Literals(directionPreferences),
  /** The rank's option; the least of all ranks counts. */
  stagingBytes: Natural,
  /** The rank's option; the largest of all ranks counts. */
  directBytes: Natural,
  /** True where the rank opened the vendor's collectives library. */
  hasCollectives: Schema.Boolean,
  /** Counts the communicators of the group; 0 for none that works. */
  connection: Natural,
  /** Blocks that peers must let go of. */
  revoked: Schema.Array(Natural),
  /** The last publication whose revocations were carried out here. */
  carriedOut: Natural
})
export type PublishedSettings = typeof PublishedSettings.Type

const Failure = Schema.TaggedStruct("Failed", { reason: CopyDriverReason })

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

const text = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value))

/** The publication as JSON in UTF-8, for `decodePublication` on every rank. */
export const encodePublication = (publication: Publication): Uint8Array =>
  text({ ...publication, lists: Object.fromEntries(publication.lists) })

const decodeText =
  <A, E>(schema: Schema.Codec<A, E>) =>
  (bytes: Uint8Array): Result.Result<A, string> =>
    Result.mapError(Schema.decodeResult(Schema.fromJsonString(schema))(new TextDecoder().decode(bytes)), (error) =>
      error.message.replaceAll("\n", " ")
    )

const decodeHead = decodeText(Head)

/** Reads what `encodePublication` wrote; its lists stay encoded. Fails with one line on what the schema refuses. */
export const decodePublication = (bytes: Uint8Array): Result.Result<Publication, string> =>
  Result.map(decodeHead(bytes), (head) => ({
    ...head,
    lists: new Map(Object.entries(head.lists).map(([rank, list]) => [Number(rank), list]))
  }))

const dtypeNumbers: ReadonlyMap<DType, number> = new Map(dtypes.map((dtype, index) => [dtype, index]))

/** A part as a row: task, part, type, memory, offset, dimensions, shape, strides. There are thousands of them. */
const rowOf = ({ taskId, part, dtype, shape, strides, memory, byteOffset }: PublishedPart): ReadonlyArray<number> => [
  taskId,
  part,
  dtypeNumbers.get(dtype)!,
  memory,
  byteOffset,
  ...shape,
  ...strides
]

/** The list as JSON text. Each part becomes one row of numbers, because a list may have thousands of parts. */
export const encodePeerList = ({ blocks, memories, messages }: PeerList): string =>
  JSON.stringify({
    blocks,
    memories,
    messages: messages.map(({ direction, index, parts }) => ({ direction, index, parts: parts.map(rowOf) }))
  })

const isNatural = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0

const Row = Schema.declare((value): value is ReadonlyArray<number> => Array.isArray(value) && value.every(isNatural))

const List = Schema.Struct({
  blocks: Schema.Array(PublishedBlock),
  memories: Schema.Array(PublishedMemory),
  messages: Schema.Array(
    Schema.Struct({ direction: Schema.Literals(["send", "recv"]), index: Natural, parts: Schema.Array(Row) })
  )
})

const headLength = 5

const partOf = (row: ReadonlyArray<number>): PublishedPart | undefined => {
  const [taskId, part, type, memory, byteOffset, ...lengths] = row
  const dtype = dtypes[type ?? -1]
  if (row.length < headLength || dtype === undefined || lengths.length % 2 !== 0) return undefined
  return {
    taskId: taskId!,
    part: part!,
    dtype,
    memory: memory!,
    byteOffset: byteOffset!,
    shape: lengths.slice(0, lengths.length / 2),
    strides: lengths.slice(lengths.length / 2)
  }
}

const decodeList = Schema.decodeResult(Schema.fromJsonString(List))

/** Reads what `encodePeerList` wrote. Fails with one line on what the schema refuses, or on a malformed row. */
export const decodePeerList = (list: string): Result.Result<PeerList, string> => {
  const decoded = decodeList(list)
  if (Result.isFailure(decoded)) return Result.fail(decoded.failure.message.replaceAll("\n", " "))
  const messages: Array<PublishedMessage> = []
  for (const { direction, index, parts } of decoded.success.messages) {
    const known = parts.map(partOf).filter((part) => part !== undefined)
    if (known.length < parts.length) return Result.fail("A part of the list is malformed.")
    messages.push({ direction, index, parts: known })
  }
  return Result.succeed({ ...decoded.success, messages })
}

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

/** How a step of a preparation ended on one rank. */
export type Outcome<A> = typeof Failure.Type | { readonly _tag: "Done"; readonly value: A }

/** The outcome as JSON in UTF-8, for a reader of `decodeOutcome` on every rank. */
export const encodeOutcome = (outcome: Outcome<unknown>): Uint8Array => text(outcome)

/** A reader of outcomes whose value has this schema. The reader fails with one line on what the schema refuses. */
export const decodeOutcome = <A, E>(value: Schema.Codec<A, E>) =>
  decodeText(Schema.Union([Failure, Schema.TaggedStruct("Done", { value })]))

/** Reads the outcome in which a rank reports what it found at its ends of all flows. */
export const decodeFindings = decodeOutcome(Schema.Array(Finding))

/** Whether a rank pushes or is pushed to. */
export const decodePushes = decodeOutcome(Schema.Boolean)

/** Of steps that tell nothing but how they ended. */
export const decodeDone = decodeOutcome(Schema.Null)
