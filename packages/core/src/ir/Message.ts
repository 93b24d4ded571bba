// SPDX-License-Identifier: Apache-2.0
/**
 * What one peer gets from another in one piece: ordered regions. Data only.
 *
 * Both ends of a message list the same parts in the same order with equal shapes and types; where the regions lie is each
 * end's own business.
 */
import type { Part, Rank, TaskId } from "../base/Ids.ts"
import type { Tensor } from "../tensor/Tensor.ts"

/** One region of a message. */
export interface MessagePart {
  readonly taskId: TaskId
  readonly part: Part
  /** The region in this rank's memory: read by the sender, written by the receiver. */
  readonly tensor: Tensor
}

/** What one peer gets from another in one piece: parts in an order that both ends share. */
export interface Message {
  readonly peer: Rank
  readonly direction: "send" | "recv"
  /** Counts the messages from one rank to another, equal on both ends. */
  readonly index: number
  /** At least one. Drivers without the capability `gather` get exactly one dense part. */
  readonly parts: ReadonlyArray<MessagePart>
  readonly byteLength: number
}
