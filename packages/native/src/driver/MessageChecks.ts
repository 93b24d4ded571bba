// SPDX-License-Identifier: Apache-2.0
/**
 * What every driver asks of messages before it prepares them, and how both ends of one compare what they have.
 *
 * Invariant: the checks depend on the messages and the group alone, so that every rank refuses the same ones in the same
 * words.
 */
import { equalShapes, formatShape, type Shape } from "@tensorferry/core/base/Region"
import type { Message, MessagePart } from "@tensorferry/core/ir/Message"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import type { Checked, DriverErrors } from "./DriverErrors.ts"
import type { PublishedPart } from "./PeerList.ts"

/** What a check needs to know of its driver. */
export interface MessageRules {
  /** Makes the errors of what is refused. */
  readonly errors: DriverErrors
  /** Ranks of the group. */
  readonly worldSize: number
  /** Why memory of a part cannot be moved by this driver; undefined where it can. */
  readonly partFault: (tensor: Tensor) => string | undefined
  /** Instead of the remedy that goes with InvalidProgram. */
  readonly remedy?: string
}

/** Fails with InvalidProgram, naming the task, for the first message that is for no other rank or has memory that is freed. */
export const checkMessages = (messages: ReadonlyArray<Message>, rules: MessageRules): Checked<void> => {
  const { errors, worldSize, partFault, remedy } = rules
  for (const { peer, parts } of messages) {
    const fail = (detail: string, taskId?: number) =>
      Result.fail(
        errors.fail("InvalidProgram", detail, {
          // A number that is no rank cannot be named as one.
          peer: Number.isInteger(peer) ? peer : undefined,
          taskId,
          op: "prepare",
          scope: "op",
          ...(remedy === undefined ? {} : { remedy })
        })
      )
    if (!Number.isInteger(peer) || peer < 0 || peer >= worldSize || peer === errors.rank) {
      return fail(`Rank ${peer} is not another rank of a group of ${worldSize}.`)
    }
    for (const { taskId, tensor } of parts) {
      const fault = tensor.storage.isFreed() ? "The storage of a part was freed." : partFault(tensor)
      if (fault !== undefined) return fail(fault, taskId)
    }
  }
  return Result.succeed(undefined)
}

/** The messages of one direction in the order that both ends know. */
export const inOrder = (messages: ReadonlyArray<Message>, direction: Message["direction"]): ReadonlyArray<Message> =>
  messages.filter((message) => message.direction === direction).sort((a, b) => a.index - b.index)

/** In which a part of this rank differs from the peer's that it meets; undefined where both are the same. */
export const partDisagreement = (
  { taskId, part, tensor }: MessagePart,
  theirs: Omit<PublishedPart, "memory">
): string | undefined => {
  const isSame = taskId === theirs.taskId && part === theirs.part && tensor.dtype === theirs.dtype
  if (isSame && equalShapes(tensor.shape, theirs.shape)) return undefined
  const text = (task: number, of: number, dtype: string, shape: Shape) =>
    `task ${task} part ${of} ${dtype}${formatShape(shape)}`
  const mine = text(taskId, part, tensor.dtype, tensor.shape)
  return `T${mine.slice(1)} meets ${text(theirs.taskId, theirs.part, theirs.dtype, theirs.shape)}.`
}
