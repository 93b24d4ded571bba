// SPDX-License-Identifier: Apache-2.0
/**
 * What the two ends of an edge say to each other, besides bytes. A child knocks in the store and finds a door there; from then
 * on both use posts of their group of two, which no collective holds up.
 *
 * For each run of bytes the child asks once. The parent answers `Go` for each chunk, in order, when it has proven it; `Wait`
 * while it has nothing new; or `No`, which ends what was asked, and not the edge.
 */
import { Rank } from "@tensorferry/core/base/Ids"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** Asks a member, in its keys of the store, to open an edge. */
export const Knock = Schema.Struct({
  /** Id of the member that asks. */
  child: Schema.String,
  /** Its place in plans. */
  rank: Rank,
  /** Of the chunks that it will ask for. */
  chunkBytes: Schema.Int
})
export type Knock = typeof Knock.Type

/** Where an edge is open. */
export const Door = Schema.Struct({
  host: Schema.String,
  port: Schema.Int,
  /** Bytes that cross the edge at a time; a chunk takes several where the parent may send little at once. */
  windowBytes: Schema.Int
})
export type Door = typeof Door.Type

/** A run of bytes that a child asks for. */
export const EdgeRequest = Schema.Struct({
  content: Schema.String,
  /** Number of the version, by which a parent tells one that it has not heard of yet from one that it does not have. */
  serial: Schema.optionalKey(Schema.Int),
  /** Which bytes of the version are meant; members that pass them on know them by the same name. */
  bundle: Schema.String,
  /** A run of bytes of the bundle, and the size of its chunks. */
  offset: Schema.Int,
  bytes: Schema.Int,
  chunkBytes: Schema.Int,
  /** Number of the first chunk that the child lacks. */
  from: Schema.Int,
  /** It is for a member that joins, and not for an update. */
  isJoin: Schema.Boolean
})
export type EdgeRequest = typeof EdgeRequest.Type

/** A post from child to parent. Requests of one edge are numbered. */
export const Ask = Schema.Struct({ ask: Schema.Int, request: EdgeRequest })
export type Ask = typeof Ask.Type

/** A post from parent to child. */
export const Answer = Schema.Union([
  /** This chunk comes next, and has this digest. */
  Schema.TaggedStruct("Go", { ask: Schema.Int, chunk: Schema.Int, digest: Schema.String }),
  /** It is not here yet. */
  Schema.TaggedStruct("Wait", { ask: Schema.Int }),
  /** Nothing more comes. */
  Schema.TaggedStruct("No", { ask: Schema.Int, reason: Schema.String })
])
export type Answer = typeof Answer.Type

/** Texts of a schema's values. */
export const textOf = <A, I>(schema: Schema.Codec<A, I>) => {
  const text = Schema.fromJsonString(schema)
  return { encode: Schema.encodeSync(text), decode: Schema.decodeUnknownResult(text) }
}

/** Posts of a schema's values. */
export const postOf = <A, I>(schema: Schema.Codec<A, I>) => {
  const { encode, decode } = textOf(schema)
  return {
    encode: (message: A): Uint8Array => new TextEncoder().encode(encode(message)),
    /** Undefined for what is no such message. */
    decode: (payload: Uint8Array): A | undefined => Result.getOrUndefined(decode(new TextDecoder().decode(payload)))
  }
}

/** Where a chunk lies in its bundle. */
export const chunkAt = (
  { offset, bytes, chunkBytes }: EdgeRequest,
  chunk: number
): readonly [start: number, end: number] => [
  offset + chunk * chunkBytes,
  offset + Math.min(bytes, (chunk + 1) * chunkBytes)
]

/** How many chunks a request is about. */
export const chunkCount = ({ bytes, chunkBytes }: Pick<EdgeRequest, "bytes" | "chunkBytes">): number =>
  Math.ceil(bytes / chunkBytes)

/** The largest part of at most `most` bytes such that equal parts cover `bytes` with next to nothing left over. */
export const evenPart = (bytes: number, most: number): number => {
  const parts = Math.max(1, Math.ceil(bytes / Math.max(1, most)))
  return Math.max(1, Math.ceil(bytes / parts))
}
