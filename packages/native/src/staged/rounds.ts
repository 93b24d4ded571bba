// SPDX-License-Identifier: Apache-2.0
/**
 * What passes through host buffers, cut into rounds. Pure.
 *
 * All messages from one rank to another are one stream; a round has the next piece of every stream, packed into one buffer.
 * Invariant: both ends of a stream cut it alike, because they see the same parts and the same limit.
 */
import { rowMajorStrides } from "@tensorferry/core/base/Region"
import type { Message } from "@tensorferry/core/ir/Message"
import { packParts, partAlignment } from "@tensorferry/core/planner/Bucketing"
import { type Move, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"

/** Buffers of a stream: one on the wire, one that is filled, one that is emptied. */
export const slotCount = 3

/** One piece of a stream: where it lies in its slot of the ring, and what is packed into it. */
interface Piece {
  readonly byteLength: number
  readonly parts: ReadonlyArray<{ readonly tensor: Tensor; readonly byteOffset: number }>
}

interface Stream {
  readonly messages: ReadonlyArray<Message>
  readonly pieces: ReadonlyArray<Piece>
  /** Bytes of a slot. */
  readonly slotBytes: number
}

/** A round before the host's driver knows it. */
export interface StagedRound {
  readonly messages: ReadonlyArray<Message>
  /** From the device into buffers, before the round; and from buffers, after it. */
  readonly pack: ReadonlyArray<Move>
  readonly unpack: ReadonlyArray<Move>
  readonly receivedBytes: number
}

const keyOf = ({ direction, peer }: Message): string => `${direction} ${peer}`

const alignUp = (bytes: number): number => Math.ceil(bytes / partAlignment) * partAlignment

/** Messages by stream, in the order in which a rank knows them. */
export const streamsOf = (messages: ReadonlyArray<Message>): ReadonlyArray<ReadonlyArray<Message>> => [
  ...Map.groupBy(messages, keyOf).values()
]

/** Streams in pieces of at most `limit` bytes, or of one part where that is longer. */
export const cutStreams = (messages: ReadonlyArray<Message>, limit: number): ReadonlyArray<Stream> =>
  streamsOf(messages).map((stream) => {
    const parts = stream.flatMap((message) => message.parts)
    const lengths = parts.map(({ tensor }) => tensorByteLength(tensor))
    const pieces = packParts(lengths, limit).map(
      (piece): Piece => ({
        byteLength: piece.byteLength,
        parts: piece.parts.map(({ index, byteOffset }) => ({ tensor: parts[index]!.tensor, byteOffset }))
      })
    )
    return {
      messages: stream,
      pieces,
      slotBytes: alignUp(pieces.reduce((most, { byteLength }) => Math.max(most, byteLength), 0))
    }
  })

/** Bytes of the ring that these streams need. */
export const ringBytes = (streams: ReadonlyArray<Stream>): number =>
  slotCount * streams.reduce((sum, { slotBytes }) => sum + slotBytes, 0)

/** The rounds of a rank with their places in `ring`, a byte tensor of at least `ringBytes`. */
export const stagedRounds = (streams: ReadonlyArray<Stream>, ring: Tensor): ReadonlyArray<StagedRound> => {
  const count = streams.reduce((most, { pieces }) => Math.max(most, pieces.length), 0)
  const starts: Array<number> = []
  let end = ring.byteOffset
  for (const { slotBytes } of streams) {
    starts.push(end)
    end += slotCount * slotBytes
  }
  return Array.from({ length: count }, (_, round): StagedRound => {
    const [pack, unpack]: [Array<Move>, Array<Move>] = [[], []]
    const messages: Array<Message> = []
    let receivedBytes = 0
    for (const [at, { messages: whole, pieces, slotBytes }] of streams.entries()) {
      const piece = pieces[round]
      if (piece === undefined) continue
      const { peer, direction, parts } = whole[0]!
      const byteOffset = starts[at]! + (round % slotCount) * slotBytes
      for (const { tensor, byteOffset: within } of piece.parts) {
        const { dtype, shape } = tensor
        const dense: Tensor = {
          ...ring,
          dtype,
          shape,
          strides: rowMajorStrides(shape),
          byteOffset: byteOffset + within
        }
        if (direction === "send") pack.push({ dst: dense, src: tensor })
        else {
          unpack.push({ dst: tensor, src: dense })
          receivedBytes += tensorByteLength(tensor)
        }
      }
      const buffer: Tensor = { ...ring, shape: [piece.byteLength], byteOffset }
      const { taskId } = parts[0]!
      messages.push({
        peer,
        direction,
        index: 0,
        parts: [{ taskId, part: round, tensor: buffer }],
        byteLength: piece.byteLength
      })
    }
    return { messages, pack, unpack, receivedBytes }
  })
}
