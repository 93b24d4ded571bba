// SPDX-License-Identifier: Apache-2.0
/**
 * A batch as rounds of messages: how many a rank needs, the staging buffers they pass through where the driver cannot gather,
 * and the moves between tensors and staging.
 *
 * Invariant: all ranks cut alike, because limits and order depend on nothing but what they have agreed on.
 */
import * as Effect from "effect/Effect"
import { rowMajorStrides } from "../../base/Region.ts"
import type { CopyDriverShape, Program } from "../../service/CopyDriver.ts"
import type { TensorEngineShape } from "../../service/TensorEngine.ts"
import { isSameView } from "../../tensor/MemoryRange.ts"
import { type Move, type Tensor, tensorByteLength } from "../../tensor/Tensor.ts"
import { fromTensorError } from "../CopyFailures.ts"
import type { CopyBatch } from "./batch.ts"
import { type Draft, draftMessages, globalOrder, isDirect, messageOf, partOf, stagingKey } from "./messageDrafts.ts"
import { remembered } from "./messages.ts"

const leastMessageBytes = 64 * 1024

/** One round of messages and how their staging is filled and emptied. */
export interface Round {
  readonly program: Program
  readonly pack: ReadonlyArray<Move>
  readonly unpack: ReadonlyArray<Move>
  /** Bytes that arrive for this rank's tensors; messages may be padded. */
  readonly receivedBytes: number
}

/**
 * The moves of a rank within itself. What lies where it should already is left out. The list of the run before is given
 * back where it fits, since engines know a list again and need not check it twice.
 */
export const localMoves = (batch: CopyBatch, before: ReadonlyArray<Move>): ReadonlyArray<Move> => {
  const moves = batch.local.flatMap(
    ({ send, recv }): ReadonlyArray<Move> =>
      isSameView(send.tensor, recv.tensor) ? [] : [{ src: send.tensor, dst: recv.tensor }]
  )
  const isKnown = ({ src, dst }: Move, at: number): boolean => {
    const known = before[at]!
    return (
      known.src.storage === src.storage &&
      known.dst.storage === dst.storage &&
      isSameView(known.src, src) &&
      isSameView(known.dst, dst)
    )
  }
  return moves.length === before.length && moves.every(isKnown) ? before : moves
}

/** Cuts batches for one driver of a rank; `stagingBytes` bound all buffers of the rank together. */
export const makeRounds = (
  engine: TensorEngineShape,
  { capabilities, rank, worldSize }: CopyDriverShape,
  stagingBytes: number
) => {
  const messageLimit = capabilities.gather
    ? capabilities.maxMessageBytes
    : Math.min(
        Math.max(leastMessageBytes, Math.floor(stagingBytes / Math.max(1, 2 * (worldSize - 1)))),
        capabilities.maxMessageBytes
      )

  const draftBatch = (batch: CopyBatch): ReadonlyArray<Draft> =>
    [
      ...[...batch.sends].flatMap(([peer, ops]) => draftMessages(peer, "send", ops, messageLimit)),
      ...[...batch.recvs].flatMap(([peer, ops]) => draftMessages(peer, "recv", ops, messageLimit))
    ].sort(globalOrder(rank))

  /** Rounds of messages that this rank needs. */
  const roundsOf = remembered((batch: CopyBatch): number =>
    capabilities.gather ? 1 : draftBatch(batch).reduce((most, draft) => Math.max(most, draft.index + 1), 0)
  )

  /** One buffer per peer and direction, large enough for its largest packed message. */
  const allocateStaging = Effect.fnUntraced(function* (drafts: ReadonlyArray<Draft>) {
    const largest = new Map<string, Draft>()
    for (const draft of drafts) {
      if (isDirect(draft)) continue
      const known = largest.get(stagingKey(draft))
      if (known === undefined || known.byteLength < draft.byteLength) largest.set(stagingKey(draft), draft)
    }
    const buffers = new Map<string, Tensor>()
    for (const [key, draft] of largest) {
      const buffer = engine.allocate("uint8", [draft.byteLength], draft.pieces[0]!.tensor.device)
      buffers.set(key, yield* Effect.mapError(buffer, (error) => fromTensorError(rank, "staging", error)))
    }
    return buffers
  })

  /** The messages of one round with their memory, and the moves that fill and empty staging. */
  const roundOf = (drafts: ReadonlyArray<Draft>, buffers: ReadonlyMap<string, Tensor>) => {
    const pack: Array<Move> = []
    const unpack: Array<Move> = []
    const messages = drafts.map((draft) => {
      const [first] = draft.pieces
      if (capabilities.gather || isDirect(draft)) return messageOf(draft, draft.pieces.map(partOf))
      const buffer = buffers.get(stagingKey(draft))!
      for (const { tensor, byteOffset } of draft.pieces) {
        const dense: Tensor = {
          ...buffer,
          dtype: tensor.dtype,
          shape: tensor.shape,
          strides: rowMajorStrides(tensor.shape),
          byteOffset: buffer.byteOffset + byteOffset
        }
        if (draft.direction === "send") pack.push({ dst: dense, src: tensor })
        else unpack.push({ dst: tensor, src: dense })
      }
      return messageOf(draft, [{ ...partOf(first!), tensor: { ...buffer, shape: [draft.byteLength] } }])
    })
    const receivedBytes = drafts.reduce(
      (sum, draft) =>
        draft.direction === "send"
          ? sum
          : draft.pieces.reduce((bytes, piece) => bytes + tensorByteLength(piece.tensor), sum),
      0
    )
    return { messages, pack, unpack, receivedBytes }
  }

  /** The messages of a round by its number. */
  const draftsOfRound = (drafts: ReadonlyArray<Draft>, index: number): ReadonlyArray<Draft> =>
    capabilities.gather ? drafts : drafts.filter((draft) => draft.index === index)

  return { draftBatch, roundsOf, allocateStaging, draftsOfRound, roundOf }
}
