// SPDX-License-Identifier: Apache-2.0
/**
 * What a rank publishes for one peer: where the parts lie that go to it and come from it, as JSON.
 *
 * Invariant: what a peer says is decoded here before anything uses it; numbers are exact, addresses below 2^53. That a
 * region lies inside its memory is checked where the memory is known.
 */
import { type DType, dtypes } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import type { Message } from "@tensorferry/core/ir/Message"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Checked, DriverErrors } from "./DriverErrors.ts"

/** A whole number from 0 on that a double holds exactly. */
export const Natural = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }))

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

/** One part: what it is, and where it begins in which memory of the list. */
export interface PublishedPart {
  readonly taskId: number
  readonly part: number
  readonly dtype: DType
  readonly shape: Shape
  readonly strides: ReadonlyArray<number>
  /** Index into the memories of the same list. */
  readonly memory: number
  readonly byteOffset: number
}

/** One message, as its owner has it. */
export interface PublishedMessage {
  readonly direction: Message["direction"]
  readonly index: number
  readonly parts: ReadonlyArray<PublishedPart>
}

/** Everything that one rank has to do with another. */
export interface PeerList {
  readonly blocks: ReadonlyArray<PublishedBlock>
  readonly memories: ReadonlyArray<PublishedMemory>
  readonly messages: ReadonlyArray<PublishedMessage>
}

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

/** A list as text. */
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

/** Reads a list, or says in one line what is wrong with it. */
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

/** The lists that peers have for this rank. `texts` are what each rank encoded for it, by rank, where it did. */
export const decodePeerLists = (
  errors: DriverErrors,
  texts: ReadonlyArray<string | undefined>
): Checked<ReadonlyMap<number, PeerList>> => {
  const lists = new Map<number, PeerList>()
  for (const [peer, text] of texts.entries()) {
    if (peer === errors.rank || text === undefined) continue
    const list = decodePeerList(text)
    if (Result.isFailure(list)) {
      return Result.fail(errors.fail("InvalidProgram", list.failure, { peer, op: "prepare" }))
    }
    lists.set(peer, list.success)
  }
  return Result.succeed(lists)
}
