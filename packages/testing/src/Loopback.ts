// SPDX-License-Identifier: Apache-2.0
/**
 * A copy driver between ranks of one process: what a real transport does, with nothing real about it. Message n from one
 * rank to another meets message n there; the receiver copies. Tests of everything above drivers stand on it.
 *
 * `order: "list"` makes it the strict transport: every rank works through its list front to back and buffers nothing, so
 * any order that is not globally consistent deadlocks, as it would on a rendezvous transport.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverCapabilities,
  type CopyDriverError,
  type CopyDriverShape,
  copyDriverError,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Move, type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"

/** What the driver does not do, so that it stands for transports that do not. */
export interface LoopbackOptions {
  /** Takes strided regions as they are. True by default. */
  readonly gather?: boolean
  /** "any": all messages at once. "list": one after the other, in list order. */
  readonly order?: "any" | "list"
  /** As in the capabilities of drivers. False by default. */
  readonly requiresTaskId?: boolean
  /** As in the capabilities of drivers. No limit by default. */
  readonly maxMessageBytes?: number
}

/** Where a sender leaves its parts and hears that they were taken. */
interface Meeting {
  readonly offered: Deferred.Deferred<ReadonlyArray<Tensor>, CopyDriverError>
  readonly taken: Deferred.Deferred<void, CopyDriverError>
}

/** What ranks of one process share. Make one per cluster. */
export interface LoopbackNetwork {
  /** The place where both ends of a transfer find each other. */
  readonly meet: (key: string) => Meeting
  /** The number of the next message of a rank's half of a pair, so that messages of different runs never mix. */
  readonly next: (rank: Rank, pair: string) => number
  /** A rank's driver begins again: its counts start from 0, and nobody waits for what it had offered. */
  readonly join: (rank: Rank) => Effect.Effect<void>
  /** Fails every open meeting with a rank. */
  readonly abandon: (rank: Rank) => Effect.Effect<void>
  /** Drops a place. */
  readonly forget: (key: string) => void
}

/** A network in which nobody has begun; the drivers of one cluster share it. */
export const makeLoopbackNetwork = (): LoopbackNetwork => {
  const meetings = new Map<string, Meeting>()
  const counts = new Map<Rank, Map<string, number>>()
  const network: LoopbackNetwork = {
    next: (rank, pair) => {
      const own = counts.get(rank) ?? new Map<string, number>()
      counts.set(rank, own)
      const count = own.get(pair) ?? 0
      own.set(pair, count + 1)
      return count
    },
    join: (rank) =>
      Effect.suspend(() => {
        counts.delete(rank)
        return network.abandon(rank)
      }),
    meet: (key) => {
      const known = meetings.get(key)
      if (known !== undefined) return known
      const meeting: Meeting = { offered: Deferred.makeUnsafe(), taken: Deferred.makeUnsafe() }
      meetings.set(key, meeting)
      return meeting
    },
    forget: (key) => {
      meetings.delete(key)
    },
    abandon: (rank) =>
      Effect.suspend(() => {
        const gone = copyDriverError("PeerGone", {
          peer: rank,
          op: "run",
          scope: "peer",
          isRetryable: true,
          detail: `Rank ${rank} gave up the transfer.`,
          remedy: "See that rank's own error."
        })
        const concerned = [...meetings].filter(([key]) => key.includes(`/${rank}>`) || key.endsWith(`>${rank}`))
        return Effect.forEach(
          concerned,
          ([key, meeting]) => {
            meetings.delete(key)
            return Effect.andThen(Deferred.fail(meeting.offered, gone), Deferred.fail(meeting.taken, gone))
          },
          { discard: true }
        )
      })
  }
  return network
}

/** The bytes of a dense tensor, as a tensor. */
const bytesView = (tensor: Tensor): Tensor =>
  Result.getOrElse(
    tensorView(tensor.storage, "uint8", [tensorByteLength(tensor)], { byteOffset: tensor.byteOffset }),
    () => tensor
  )

const loopbackDriver = (
  network: LoopbackNetwork,
  options: LoopbackOptions = {}
): Effect.Effect<CopyDriverShape, never, ProcessGroup | TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const group = yield* ProcessGroup
    const engine = yield* TensorEngine
    const scope = yield* Effect.scope
    const capabilities: CopyDriverCapabilities = {
      gather: options.gather ?? true,
      requiresProcessGroupBarrier: false,
      requiresTaskId: options.requiresTaskId ?? false,
      deviceFamilies: ["*"],
      maxMessageBytes: options.maxMessageBytes ?? Number.MAX_SAFE_INTEGER
    }
    const { rank } = group
    yield* network.join(rank)
    yield* Effect.addFinalizer(() => network.abandon(rank))

    const movesOf = (
      message: Message,
      offered: ReadonlyArray<Tensor>
    ): Result.Result<ReadonlyArray<Move>, CopyDriverError> => {
      if (offered.length === message.parts.length) {
        const whole = capabilities.gather ? (tensor: Tensor) => tensor : bytesView
        return Result.succeed(message.parts.map((part, at) => ({ dst: whole(part.tensor), src: whole(offered[at]!) })))
      }
      return Result.fail(
        copyDriverError("TransportFailed", {
          rank,
          peer: message.peer,
          op: "run",
          detail: `Rank ${message.peer} sends ${offered.length} parts where ${message.parts.length} are received.`,
          remedy: "Cut messages alike on both ends."
        })
      )
    }

    const move = (
      message: Message,
      key: string,
      moved: (bytes: number) => void
    ): Effect.Effect<void, CopyDriverError> =>
      Effect.gen(function* () {
        const meeting = network.meet(key)
        if (message.direction === "send") {
          yield* Deferred.succeed(
            meeting.offered,
            message.parts.map((part) => part.tensor)
          )
          yield* Deferred.await(meeting.taken)
          network.forget(key)
          return
        }
        const offered = yield* Deferred.await(meeting.offered)
        const moves = yield* Effect.fromResult(movesOf(message, offered))
        yield* engine
          .copy(moves)
          .pipe(
            Effect.mapError((error) =>
              copyDriverError("TransportFailed", { ...error.reason, rank, peer: message.peer, op: "run" })
            )
          )
        moved(message.byteLength)
        yield* Deferred.succeed(meeting.taken, undefined)
      })

    return CopyDriver.of({
      name: "loopback",
      rank,
      worldSize: group.size,
      capabilities,
      prepare: (messages) =>
        Effect.succeed({
          messages,
          paths: [...new Set(messages.map((message) => message.peer))].map((peer) => ({
            peer,
            path: "memory",
            reason: "both ranks are in one process"
          }))
        }),
      start: (program: Program) =>
        Effect.gen(function* () {
          let movedBytes = 0
          const all = program.messages.map((message) => {
            const [from, to] = message.direction === "send" ? [rank, message.peer] : [message.peer, rank]
            const pair = `${from}>${to}`
            return move(message, `${network.next(rank, pair)}/${pair}`, (bytes) => {
              movedBytes += bytes
            })
          })
          const concurrency = options.order === "list" ? 1 : "unbounded"
          const fiber = yield* Effect.forkIn(Effect.all(all, { concurrency, discard: true }), scope)
          return {
            isComplete: Effect.sync(() => fiber.pollUnsafe() !== undefined),
            await: Effect.flatMap(Fiber.await(fiber), (exit) =>
              Exit.isSuccess(exit) ? Effect.void : Effect.failCause(exit.cause)
            ),
            cancel: Effect.andThen(Fiber.interrupt(fiber), network.abandon(rank)),
            movedBytes: Effect.sync(() => movedBytes)
          }
        })
    })
  })

/** The driver of one rank, which copies with the engine of its context. */
export const loopbackLayer = (
  network: LoopbackNetwork,
  options: LoopbackOptions = {}
): Layer.Layer<CopyDriver, never, ProcessGroup | TensorEngine> =>
  Layer.effect(CopyDriver, loopbackDriver(network, options))

/** Zero buffering, list order. */
export const strictLayer = (network: LoopbackNetwork, options: Omit<LoopbackOptions, "order"> = {}) =>
  loopbackLayer(network, { ...options, order: "list" })
