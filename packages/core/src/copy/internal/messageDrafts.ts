// SPDX-License-Identifier: Apache-2.0
/**
 * Cuts a batch into messages before they have memory. Pure.
 *
 * Invariant: both ends of a pair of ranks cut alike, and all ranks sort alike.
 */
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import type { Message, MessagePart } from "../../ir/Message.ts"
import { packParts, splitPart } from "../../planner/Bucketing.ts"
import { isContiguous, sliceTensor, type Tensor, tensorByteLength } from "../../tensor/Tensor.ts"
import type { BatchOp } from "./batch.ts"

/** A message before it has memory. */
export interface Draft {
  readonly peer: Rank
  readonly direction: "send" | "recv"
  readonly index: number
  readonly pieces: ReadonlyArray<{ readonly op: BatchOp; readonly tensor: Tensor; readonly byteOffset: number }>
  readonly byteLength: number
}

/** Cuts one direction of one pair into messages; empty tensors travel in none. */
export const draftMessages = (
  peer: Rank,
  direction: "send" | "recv",
  ops: ReadonlyArray<BatchOp>,
  limit: number
): ReadonlyArray<Draft> => {
  const pieces = ops.flatMap((op) =>
    splitPart(op.tensor, limit).flatMap((region) => {
      const view = sliceTensor(op.tensor, region)
      return Result.isSuccess(view) && !view.success.shape.includes(0) ? [{ op, tensor: view.success }] : []
    })
  )
  return packParts(
    pieces.map((piece) => tensorByteLength(piece.tensor)),
    limit
  ).map((message, index) => ({
    peer,
    direction,
    index,
    pieces: message.parts.map((part) => ({ ...pieces[part.index]!, byteOffset: part.byteOffset })),
    byteLength: message.byteLength
  }))
}

/** Sorts messages into an order that is consistent over all ranks: by index, then sender, then receiver. */
export const globalOrder =
  (rank: Rank) =>
  (a: Draft, b: Draft): number => {
    const sender = (draft: Draft) => (draft.direction === "send" ? rank : draft.peer)
    const receiver = (draft: Draft) => (draft.direction === "send" ? draft.peer : rank)
    return a.index - b.index || sender(a) - sender(b) || receiver(a) - receiver(b)
  }

export const messageOf = (draft: Draft, parts: ReadonlyArray<MessagePart>): Message => ({
  peer: draft.peer,
  direction: draft.direction,
  index: draft.index,
  parts,
  byteLength: draft.byteLength
})

/** A message of one dense piece needs no staging, whatever the other end does. */
export const isDirect = (draft: Draft): boolean => draft.pieces.length === 1 && isContiguous(draft.pieces[0]!.tensor)

export const stagingKey = (draft: Draft): string => `${draft.direction} ${draft.peer}`

export const partOf = ({ op, tensor }: Draft["pieces"][number]): MessagePart => ({
  taskId: op.taskId ?? op.sequence,
  part: op.part,
  tensor
})
