// SPDX-License-Identifier: Apache-2.0
/** What both kinds of queues do with the bytes of commands: refuse long ones, and pass by what is none. */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Message } from "../command/Command.ts"
import { decodeCommand, encodeCommand } from "../command/CommandCodec.ts"
import { type CommandQueueError, commandQueueError, longestCommand } from "./CommandQueue.ts"

export const writeCommands = (
  messages: ReadonlyArray<Message>
): Effect.Effect<ReadonlyArray<Uint8Array>, CommandQueueError> => {
  const written = messages.map(encodeCommand)
  const long = written.find((bytes) => bytes.length > longestCommand)
  return long === undefined
    ? Effect.succeed(written)
    : Effect.fail(
        commandQueueError("TooLarge", {
          op: "enqueue",
          detail: `A command has ${long.length} bytes; the longest has ${longestCommand}.`,
          remedy: "Register the tensors in several batches."
        })
      )
}

/** The commands among these bytes; `refused` gets the number of the others. */
export const readCommands = (
  entries: ReadonlyArray<Uint8Array>,
  refused: (count: number) => void
): Effect.Effect<ReadonlyArray<Message>> =>
  Effect.gen(function* () {
    const messages: Array<Message> = []
    for (const entry of entries) {
      const decoded = decodeCommand(entry)
      if (Result.isSuccess(decoded)) messages.push(decoded.success)
      else {
        refused(1)
        yield* Effect.logWarning(
          `Skipped an invalid entry of ${entry.length} bytes in the command queue: ${decoded.failure.message}`
        )
      }
    }
    return messages
  })
