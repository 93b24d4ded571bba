// SPDX-License-Identifier: Apache-2.0
/**
 * The way of commands from the clients of a rank to its agent.
 *
 * Contract
 * - Any number of processes put commands in, one agent takes them out, in the order in which they were put in.
 * - A full queue makes `enqueue` wait, and fail with "Full" at its deadline; nothing is ever overwritten or lost.
 * - An invalid entry is skipped, logged and counted; its place is free again.
 * - An entry that is not what was put there fails one `dequeue` with "Corrupt", once what was taken with it is given, and
 *   its place is free again; the next one goes on. Entries of clients that state no checksum are not checked.
 * - Waiting never blocks the JavaScript thread and can be interrupted.
 */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Message } from "../command/Command.ts"

/** Why a queue failed, by tag. */
export const CommandQueueReason = Schema.Union([
  /** No place became free before the deadline. */
  reason("Full"),
  /** A command longer than the queue takes. */
  reason("TooLarge"),
  /** There is no queue here, or no agent serves it. */
  reason("NotServed"),
  /** Another agent serves this queue. */
  reason("Busy"),
  /** The file or a semaphore belongs to another user, can be written by others, or is no plain file. */
  reason("Untrusted"),
  /** The file is no queue of this version. */
  reason("Damaged"),
  /** A command's bytes changed after it was put in; it is lost. The detail names its place. */
  reason("Corrupt"),
  /** A library that the queue needs is not installed. */
  reason("Unavailable"),
  reason("SystemFailure")
])
export type CommandQueueReason = typeof CommandQueueReason.Type

/** Why a queue could not take, give or keep a command; `reason` names the queue and the remedy. */
export class CommandQueueError extends ReasonError<CommandQueueError>()("CommandQueueError", CommandQueueReason) {}

/** The error of a tag, from what is known where it was seen. */
export const commandQueueError = (tag: CommandQueueReason["_tag"], input: ReasonInput): CommandQueueError =>
  new CommandQueueError({ reason: reasonOf(tag, input) })

/** What a queue holds now. */
export interface CommandQueueStatus {
  /** Commands ever taken out, and ever put in; exact beyond 2^53. */
  readonly head: bigint
  readonly tail: bigint
  /** What the counters say: commands that wait, places that are free. */
  readonly items: number
  readonly space: number
  /** Entries that this process skipped because they were not commands. */
  readonly refused: number
}

/** What a queue offers to its agent and its clients. */
export interface CommandQueueShape {
  /** Puts commands in, one behind the other. The deadline is 60 seconds unless stated. */
  readonly enqueue: (
    messages: ReadonlyArray<Message>,
    deadline?: Duration.Input
  ) => Effect.Effect<void, CommandQueueError>
  /** Waits for commands and takes out up to `most` of them, at least one. */
  readonly dequeue: (most?: number) => Effect.Effect<ReadonlyArray<Message>, CommandQueueError>
  readonly status: Effect.Effect<CommandQueueStatus, CommandQueueError>
}

/** The service through which clients of one machine hand commands to their agent, in order and across crashes. */
export class CommandQueue extends Context.Service<CommandQueue, CommandQueueShape>()(
  "@tensorferry/bus/queue/CommandQueue"
) {}

/** Most commands that wait where no option says otherwise. */
export const defaultCapacity = 50_000
/** How long a client waits for a free place where no option says otherwise. */
export const defaultDeadline = "60 seconds"
/** How many commands are taken out at once. */
export const defaultMost = 64
/** Longest command in bytes. */
export const longestCommand = 64 * 1024 * 1024
