// SPDX-License-Identifier: Apache-2.0
/**
 * A copy driver between ranks of one process that all see each other's memory: the receiver fetches every message from where
 * the sender has it, and the sender does nothing. What drivers over mapped memory do, with nothing real about it; so it is
 * `pairwise`, where `Loopback` is not.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  copyDriverError,
  type PeerFlags,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Move } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"

/** Where the ranks of a cluster publish what they send. */
export interface SharedMemory {
  /** `program` counts the preparations of the sender. */
  readonly publish: (from: Rank, program: number, message: Message) => void
  /** What a rank has put for another, by program and index. */
  readonly find: (from: Rank, program: number, to: Rank, index: number) => Message | undefined
  /** Of each rank, where there are flags. */
  readonly flags?: (rank: Rank) => PeerFlags
}

/** Memory in which nothing is published; the drivers of one cluster share it, and flags if there are any. */
export const makeSharedMemory = (flags?: SharedMemory["flags"]): SharedMemory => {
  const published = new Map<string, Message>()
  const key = (from: Rank, program: number, to: Rank, index: number) => `${from}>${to}/${program}/${index}`
  return {
    ...(flags === undefined ? {} : { flags }),
    publish: (from, program, message) => void published.set(key(from, program, message.peer, message.index), message),
    find: (from, program, to, index) => published.get(key(from, program, to, index))
  }
}

/** What stands between a receiver and each message that it fetches, for tests that decide on the order of events. */
export type BeforeFetch = (receiver: Rank, message: Message) => Effect.Effect<void, CopyDriverError>

const sharedMemoryDriver = (
  memory: SharedMemory,
  beforeFetch: BeforeFetch
): Effect.Effect<CopyDriverShape, never, ProcessGroup | TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const group = yield* ProcessGroup
    const engine = yield* TensorEngine
    const scope = yield* Effect.scope
    const { rank } = group
    const fail = (tag: "InvalidProgram" | "TransportFailed", peer: Rank, detail: string) =>
      copyDriverError(tag, { rank, peer, op: "run", detail, remedy: "Prepare the messages again on all ranks." })

    const movesOf = (message: Message, sent: Message): ReadonlyArray<Move> =>
      message.parts.map((part, at) => ({ dst: part.tensor, src: sent.parts[at]!.tensor }))

    /** How each rank calls a program. */
    const numbers = new WeakMap<Program, ReadonlyArray<number>>()
    let prepared = 0

    const fetch = (
      called: ReadonlyArray<number>,
      message: Message,
      moved: (bytes: number) => void
    ): Effect.Effect<void, CopyDriverError> =>
      Effect.gen(function* () {
        yield* beforeFetch(rank, message)
        const sent = memory.find(message.peer, called[message.peer] ?? -1, rank, message.index)
        if (sent === undefined || sent.parts.length !== message.parts.length) {
          return yield* fail("InvalidProgram", message.peer, `Rank ${message.peer} sends no message ${message.index}.`)
        }
        const copied = engine.copy(movesOf(message, sent))
        yield* Effect.mapError(copied, (error) =>
          copyDriverError("TransportFailed", { ...error.reason, rank, peer: message.peer, op: "run" })
        )
        moved(message.byteLength)
      })

    return CopyDriver.of({
      name: "shared-memory",
      ...(memory.flags === undefined ? {} : { flags: memory.flags(rank) }),
      rank,
      worldSize: group.size,
      capabilities: {
        gather: true,
        requiresProcessGroupBarrier: true,
        requiresTaskId: false,
        deviceFamilies: ["*"],
        maxMessageBytes: Number.MAX_SAFE_INTEGER,
        pairwise: true
      },
      prepare: (messages) =>
        Effect.gen(function* () {
          const number = prepared++
          for (const message of messages) if (message.direction === "send") memory.publish(rank, number, message)
          const stated = new Uint8Array(new Uint32Array([number]).buffer)
          const called = yield* Effect.mapError(group.allGather("published", stated), (error) =>
            fail("TransportFailed", error.ranks[0] ?? rank, error.message)
          )
          const program: Program = {
            messages,
            paths: [...new Set(messages.map(({ peer }) => peer))].map((peer) => ({
              peer,
              path: "memory",
              reason: "both ranks are in one process"
            }))
          }
          numbers.set(
            program,
            called.map((each) => new DataView(each.buffer, each.byteOffset).getUint32(0, true))
          )
          return program
        }),
      start: (program: Program) =>
        Effect.gen(function* () {
          let movedBytes = 0
          const received = program.messages.filter(({ direction }) => direction === "recv")
          const all = received.map((message) =>
            fetch(numbers.get(program) ?? [], message, (bytes) => {
              movedBytes += bytes
            })
          )
          const fetching = Effect.all(all, { concurrency: "unbounded", discard: true })
          const fiber = yield* Effect.forkIn(fetching, scope, { startImmediately: true })
          return {
            isComplete: Effect.sync(() => fiber.pollUnsafe() !== undefined),
            await: Effect.flatMap(Fiber.await(fiber), (exit) =>
              Exit.isSuccess(exit) ? Effect.void : Effect.failCause(exit.cause)
            ),
            cancel: Fiber.interrupt(fiber),
            movedBytes: Effect.sync(() => movedBytes)
          }
        })
    })
  })

/** The driver of one rank, which copies with the engine of its context. */
export const sharedMemoryLayer = (
  memory: SharedMemory,
  beforeFetch: BeforeFetch = () => Effect.void
): Layer.Layer<CopyDriver, never, ProcessGroup | TensorEngine> =>
  Layer.effect(CopyDriver, sharedMemoryDriver(memory, beforeFetch))
