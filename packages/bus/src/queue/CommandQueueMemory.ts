// SPDX-License-Identifier: Apache-2.0
/** A command queue within one process: for tests, and for clients and agents that share a process. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import {
  CommandQueue,
  type CommandQueueShape,
  commandQueueError,
  defaultCapacity,
  defaultDeadline,
  defaultMost
} from "./CommandQueue.ts"
import { readCommands, writeCommands } from "./readCommands.ts"

/** How much a queue in memory holds. */
export interface MemoryOptions {
  /** Most commands that wait; 50000 by default. */
  readonly capacity?: number
}

/** A queue within this process. Commands that wait are lost with the scope. */
export const make = Effect.fnUntraced(function* (options: MemoryOptions = {}) {
  const capacity = options.capacity ?? defaultCapacity
  const queue = yield* Effect.acquireRelease(Queue.bounded<Uint8Array>(capacity), Queue.shutdown)
  let head = 0n
  let tail = 0n
  let refused = 0
  const offer = (entry: Uint8Array) =>
    Effect.tap(Queue.offer(queue, entry), () =>
      Effect.sync(() => {
        tail += 1n
      })
    )
  return {
    enqueue: (messages, deadline = defaultDeadline) =>
      Effect.flatMap(writeCommands(messages), (entries) =>
        Effect.forEach(entries, offer, { discard: true }).pipe(
          Effect.timeoutOrElse({
            duration: deadline,
            orElse: () =>
              Effect.fail(
                commandQueueError("Full", {
                  op: "enqueue",
                  detail: `The queue stayed full for ${Duration.format(Duration.fromInputUnsafe(deadline))}: ${capacity} commands wait.`,
                  remedy: "See whether the agent is alive, or wait longer.",
                  isRetryable: true
                })
              )
          })
        )
      ),
    dequeue: (most = defaultMost) =>
      Effect.gen(function* () {
        for (;;) {
          const entries = yield* Queue.takeBetween(queue, 1, most)
          head += BigInt(entries.length)
          const messages = yield* readCommands(entries, (count) => {
            refused += count
          })
          if (messages.length > 0) return messages
        }
      }),
    status: Effect.map(Queue.size(queue), (items) => ({ head, tail, items, space: capacity - items, refused }))
  } satisfies CommandQueueShape
})

/** A queue within this process, for tests and for clients in the agent's own process. */
export const layerMemory = (options: MemoryOptions = {}): Layer.Layer<CommandQueue> =>
  Layer.effect(CommandQueue, make(options))
