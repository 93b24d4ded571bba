// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks publish before a transfer: where the sender's parts lie. Short statements are JSON, the lists of
 * parts are bytes: there are thousands of them, and each rank reads only its own.
 *
 * Invariant: what a peer says is decoded here before anything uses it; numbers are exact, addresses below 2^53. That a
 * region lies inside its memory is checked where the memory is known.
 */

import { type DType, dtypes } from "@tensorferry/core/base/DType"
import { Natural } from "@tensorferry/core/base/Numbers"
import { rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import type { PeerPath } from "@tensorferry/core/service/CopyDriver"
import { encodeText, Failed, type Outcome } from "@tensorferry/native/driver/Outcome"
import { PublishedFlags } from "@tensorferry/native/driver/PeerFlags"
import type { PublishedMessage, PublishedPart } from "@tensorferry/native/driver/PeerList"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { ByteReader, ByteWriter } from "./Bytes.ts"

const Digits = Schema.String.check(Schema.isPattern(/^\d{1,20}$/))

/** Where a storage lies in a memory file. */
export interface PublishedFile {
  /** The process that has the file open, where it is not the one that publishes. */
  readonly owner?: { readonly pid: number; readonly processStart: string }
  readonly descriptor: number
  readonly inode: number
  readonly byteOffset: number
}

/** One storage: its place in the owner's address space, and in a file where it can be mapped. */
export interface PublishedMemory {
  readonly address: number
  readonly byteLength: number
  readonly file: PublishedFile | undefined
}

/** Everything that one rank sends to another. */
export interface PeerList {
  readonly memories: ReadonlyArray<PublishedMemory>
  readonly messages: ReadonlyArray<Omit<PublishedMessage, "direction">>
}

/** Who publishes: enough to prove that a process number means this very process. */
export const PublishedProcess = Schema.Struct({
  pid: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 - 1 })),
  processStart: Digits,
  space: Schema.String.check(Schema.isMaxLength(256)),
  cookieAddress: Digits,
  cookie: Schema.String.check(Schema.isPattern(/^[0-9a-f]{32}$/)),
  flags: Schema.optionalKey(PublishedFlags)
})
export type PublishedProcess = typeof PublishedProcess.Type

const Head = Schema.Union([Failed, Schema.TaggedStruct("Published", { process: PublishedProcess })])

export type Publication =
  | typeof Failed.Type
  | {
      readonly _tag: "Published"
      readonly process: PublishedProcess
      /** Encoded `PeerList`s by receiving rank. */
      readonly lists: ReadonlyMap<number, Uint8Array>
    }

const Path = Schema.Struct({ peer: Natural, path: Schema.String, reason: Schema.String })

/** How a rank fared: the paths by which it will fetch. */
export type PathOutcome = Outcome<ReadonlyArray<PeerPath>>

const CompiledPaths = Schema.Union([Failed, Schema.TaggedStruct("Compiled", { paths: Schema.Array(Path) })])

export const encodePathOutcome = (outcome: PathOutcome): Uint8Array =>
  encodeText(outcome._tag === "Done" ? { _tag: "Compiled", paths: outcome.value } : outcome)

const decodeCompiledPaths = Schema.decodeUnknownResult(Schema.fromJsonString(CompiledPaths))
export const decodePathOutcome = (bytes: Uint8Array): Result.Result<PathOutcome, string> =>
  Result.mapBoth(decodeCompiledPaths(new TextDecoder().decode(bytes)), {
    onFailure: (error) => error.message,
    onSuccess: (outcome) => (outcome._tag === "Failed" ? outcome : { _tag: "Done", value: outcome.paths })
  })

export const encodePublication = (publication: Publication): Uint8Array => {
  const writer = new ByteWriter()
  const { lists, ...head } = publication._tag === "Published" ? publication : { ...publication, lists: new Map() }
  writer.putText(JSON.stringify(head))
  writer.put(lists.size)
  for (const [rank, list] of lists) {
    writer.put(rank)
    writer.putBytes(list)
  }
  return writer.bytes
}

const decodeHead = Schema.decodeUnknownResult(Schema.fromJsonString(Head))

/** What a rank published, as it concerns one other. */
export interface PublishedFor {
  readonly process: PublishedProcess
  readonly list: PeerList | undefined
}

/** What a rank published, and its list for `receiver` where it has one; lists of others are passed over. */
export const decodePublication = (
  bytes: Uint8Array,
  receiver: number
): Result.Result<Outcome<PublishedFor>, string> => {
  const reader = new ByteReader(bytes)
  const head = decodeHead(reader.takeText())
  if (Result.isFailure(head)) return Result.fail(head.failure.message)
  let mine: Uint8Array | undefined
  for (let left = reader.takeCount(); left > 0; left--) {
    const rank = reader.take()
    const list = reader.takeBytes()
    if (rank === receiver) mine = list
  }
  if (!reader.isAtEnd) return Result.fail("The publication is cut off or malformed.")
  if (head.success._tag === "Failed") return Result.succeed(head.success)
  const { process } = head.success
  const list = mine === undefined ? Result.succeed(undefined) : decodePeerList(mine)
  return Result.map(list, (known) => ({ _tag: "Done", value: { process, list: known } }))
}

const dtypeNumbers: ReadonlyMap<DType, number> = new Map(dtypes.map((dtype, index) => [dtype, index]))

const isRowMajor = (shape: Shape, strides: ReadonlyArray<number>): boolean =>
  rowMajorStrides(shape).every((stride, dim) => stride === strides[dim])

export const encodePeerList = ({ memories, messages }: PeerList): Uint8Array => {
  const writer = new ByteWriter()
  writer.put(memories.length)
  for (const { address, byteLength, file } of memories) {
    writer.put(address)
    writer.put(byteLength)
    writer.put(file === undefined ? 0 : file.owner === undefined ? 1 : 2)
    if (file === undefined) continue
    if (file.owner !== undefined) writer.putAll([file.owner.pid, Number(file.owner.processStart)])
    writer.putAll([file.descriptor, file.inode, file.byteOffset])
  }
  writer.put(messages.length)
  for (const { index, parts } of messages) {
    writer.put(index)
    writer.put(parts.length)
    for (const { taskId, part, dtype, shape, strides, memory, byteOffset } of parts) {
      writer.put(taskId)
      writer.put(part)
      writer.put(dtypeNumbers.get(dtype)!)
      writer.put(memory)
      writer.put(byteOffset)
      writer.put(shape.length)
      writer.putAll(shape)
      const isDense = isRowMajor(shape, strides)
      writer.put(isDense ? 1 : 0)
      if (!isDense) writer.putAll(strides)
    }
  }
  return writer.bytes
}

const takePart = (reader: ByteReader): PublishedPart => {
  const [taskId, part, type, memory, byteOffset] = [
    reader.take(),
    reader.take(),
    reader.take(),
    reader.take(),
    reader.take()
  ]
  const dtype = dtypes[type]
  if (dtype === undefined) reader.fail()
  const shape = reader.takeAll(reader.takeCount())
  const strides = reader.take() === 1 ? rowMajorStrides(shape) : reader.takeAll(shape.length)
  return { taskId, part, dtype: dtype ?? "uint8", shape, strides, memory, byteOffset }
}

/** Of memory: none, a file of who publishes, or one of another process. */
const fileKinds = [0, 1, 2]

const takeMemory = (reader: ByteReader): PublishedMemory => {
  const [address, byteLength, kind] = [reader.take(), reader.take(), fileKinds.indexOf(reader.take())]
  if (kind <= 0) return { address, byteLength, file: undefined }
  const owner = kind === 2 ? { owner: { pid: reader.take(), processStart: String(reader.take()) } } : {}
  const file = { ...owner, descriptor: reader.take(), inode: reader.take(), byteOffset: reader.take() }
  return { address, byteLength, file }
}

const decodePeerList = (bytes: Uint8Array): Result.Result<PeerList, string> => {
  const reader = new ByteReader(bytes)
  const many = <A>(takeOne: (reader: ByteReader) => A): Array<A> => {
    const all: Array<A> = []
    for (let left = reader.takeCount(); left > 0 && reader.isSound; left--) all.push(takeOne(reader))
    return all
  }
  const memories = many(takeMemory)
  const messages = many(() => ({ index: reader.take(), parts: many(takePart) }))
  return reader.isAtEnd
    ? Result.succeed({ memories, messages })
    : Result.fail("The list of parts is cut off or malformed.")
}
