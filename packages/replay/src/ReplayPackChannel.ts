// SPDX-License-Identifier: Apache-2.0
/**
 * Pack requests between processes: the learner's end as a `ReplayPackRequests`, the collector's end as a server of them.
 *
 * Invariants: an answer goes to the request with its number, or to nobody. When the channel closes, every request that is
 * open fails with `CollectorGone`, and a collector stops packing. The collector packs one batch after the other, in the
 * order of the requests.
 */

import type { PackedBatch, PackRequest, ReplayPackRequestsShape } from "@tensorferry/core/replay/ReplayPackRequests"
import { batchError, ReplayPipelineError } from "@tensorferry/core/replay/ReplayPipelineError"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberMap from "effect/FiberMap"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { decodeFromCollector, decodeToCollector, type FromCollector, type ToCollector } from "./ReplayPackMessages.ts"

/** One end of a channel for messages in order, as Node has to a forked process and from it. */
export interface MessagePort {
  /** False once the other end is gone. */
  readonly connected: boolean
  /** Calls back when the message has left, or could not. */
  readonly send?: (message: unknown, callback: (error: unknown) => void) => unknown
  /** Adds a listener. */
  readonly on: (event: "message" | "disconnect", listener: (message: unknown) => void) => unknown
  /** Removes a listener. */
  readonly off: (event: "message" | "disconnect", listener: (message: unknown) => void) => unknown
}

/** Requests for batches in shared memory, from the learner's process to the collector's and back. */
export interface ReplayPackChannel {
  /** Hands a message over; one that can no longer be delivered is followed by the channel's end. */
  readonly send: (message: unknown) => void
  /** False once the other end is gone. */
  readonly isOpen: () => boolean
  /** Calls with each message, and once when the channel has closed, until the scope ends. */
  readonly listen: (on: {
    readonly message: (message: unknown) => void
    readonly closed: () => void
  }) => Effect.Effect<void, never, Scope.Scope>
}

/** The channel that Node keeps between a process and one that it forked: `portChannel(child)`, `portChannel(process)`. */
export const portChannel = (port: MessagePort): ReplayPackChannel => ({
  send: (message) => {
    // Errors of a closing channel are reported by its end.
    if (port.connected) port.send?.(message, () => undefined)
  },
  isOpen: () => port.connected,
  listen: ({ message, closed }) =>
    Effect.acquireRelease(
      Effect.sync(() => {
        port.on("message", message)
        port.on("disconnect", closed)
      }),
      () =>
        Effect.sync(() => {
          port.off("message", message)
          port.off("disconnect", closed)
        })
    )
})

/** How long an interrupted request waits for the collector to let go of the slot. */
const letGoWithin = Duration.seconds(2)

const gone = (request: PackRequest): ReplayPipelineError =>
  batchError("CollectorGone", request, {
    op: "pack",
    scope: "peer",
    detail: "The collector's channel is closed, because the collector exited.",
    remedy: "See why the collector exited, start another one and build the pipeline on it."
  })

interface OpenRequest {
  readonly request: PackRequest
  readonly end: (exit: Effect.Effect<PackedBatch, ReplayPipelineError>) => void
}

const packedOf = (
  request: PackRequest,
  answer: Exclude<FromCollector, { readonly _tag: "ReplayCancelled" }>
): Effect.Effect<PackedBatch, ReplayPipelineError> => {
  if (answer._tag === "ReplayPackFailed") return Effect.fail(new ReplayPipelineError({ reason: answer.reason }))
  const { tick, slot, redrawn, pid } = answer
  const [first, end] = [BigInt(answer.first), BigInt(answer.end)]
  if (tick !== request.tick || slot !== request.slot || end <= first) {
    return Effect.fail(
      batchError("PackFailed", request, {
        op: "pack",
        scope: "peer",
        detail: `The collector answered with tick ${tick}, slot ${slot} and rows ${first} to ${end}.`,
        remedy: "Run the same version of tensorferry on both sides."
      })
    )
  }
  return Effect.succeed({
    ...{ tick, slot, first, end, redrawn, pid },
    startedAt: BigInt(answer.startedAt),
    endedAt: BigInt(answer.endedAt)
  })
}

/** The learner's end. */
export const remotePackRequests = Effect.fnUntraced(function* (
  channel: ReplayPackChannel
): Effect.fn.Return<ReplayPackRequestsShape, never, Scope.Scope> {
  const open = new Map<number, OpenRequest>()
  let last = 0
  const send = (message: ToCollector): void => channel.send(message)
  const endAll = (): void => {
    for (const { request, end } of open.values()) end(Effect.fail(gone(request)))
  }
  yield* channel.listen({
    message: (message) => {
      const answer = Option.getOrUndefined(decodeFromCollector(message))
      if (answer === undefined) return
      const found = open.get(answer.id)
      // Nobody hears of a cancellation that was asked for; another one means that the collector stops serving.
      found?.end(answer._tag === "ReplayCancelled" ? Effect.fail(gone(found.request)) : packedOf(found.request, answer))
    },
    closed: endAll
  })
  yield* Effect.addFinalizer(() => Effect.sync(endAll))
  return {
    pack: (request) =>
      Effect.callback<PackedBatch, ReplayPipelineError>((resume) => {
        if (!channel.isOpen()) return resume(Effect.fail(gone(request)))
        const id = ++last
        let letGo: (() => void) | undefined
        open.set(id, {
          request,
          end: (exit) => {
            open.delete(id)
            resume(exit)
            letGo?.()
          }
        })
        send({ _tag: "ReplayPack", id, ...request })
        const released = Effect.callback<void>((done) => {
          if (!open.has(id)) return done(Effect.void)
          letGo = () => done(Effect.void)
          send({ _tag: "ReplayCancel", id })
        })
        return Effect.andThen(
          Effect.timeoutOption(released, letGoWithin),
          Effect.sync(() => void open.delete(id))
        )
      })
  }
})

/** A collector's server of requests, which runs until its scope ends. */
export interface PackServer {
  /** Ends when the channel has closed. */
  readonly closed: Effect.Effect<void>
}

/** The collector's end: serves until the scope ends or the channel closes. */
export const servePackRequests = Effect.fnUntraced(function* (
  channel: ReplayPackChannel,
  pack: ReplayPackRequestsShape["pack"]
): Effect.fn.Return<PackServer, never, Scope.Scope> {
  const running = yield* FiberMap.make<number>()
  const run = yield* FiberMap.runtime(running)<never>()
  const fork = Effect.runForkWith(yield* Effect.context<never>())
  const inTurn = Semaphore.makeUnsafe(1)
  const answer = (message: FromCollector): void => channel.send(message)
  const serve = ({ id, tick, seed, rows, slot }: Extract<ToCollector, { readonly _tag: "ReplayPack" }>) =>
    Semaphore.withPermits(
      inTurn,
      1
    )(pack({ tick, seed, rows, slot })).pipe(
      Effect.match({
        onSuccess: ({ first, end, startedAt, endedAt, ...packed }) =>
          answer({
            ...packed,
            ...{ _tag: "ReplayPacked", id, first: `${first}`, end: `${end}` },
            startedAt: `${startedAt}`,
            endedAt: `${endedAt}`
          }),
        onFailure: ({ reason }) => answer({ _tag: "ReplayPackFailed", id, reason })
      }),
      Effect.onInterrupt(() => Effect.sync(() => answer({ _tag: "ReplayCancelled", id })))
    )
  let end: (() => void) | undefined
  let isClosed = !channel.isOpen()
  yield* channel.listen({
    message: (message) => {
      const asked = Option.getOrUndefined(decodeToCollector(message))
      if (asked === undefined) return
      if (asked._tag === "ReplayPack") run(asked.id, serve(asked))
      else {
        // Also where the request's fiber has not begun, or has answered already: the second answer reaches nobody.
        const cancelled = Effect.sync(() => answer({ _tag: "ReplayCancelled", id: asked.id }))
        fork(Effect.andThen(FiberMap.remove(running, asked.id), cancelled))
      }
    },
    closed: () => {
      isClosed = true
      end?.()
      fork(FiberMap.clear(running))
    }
  })
  const closed = Effect.callback<void>((resume) => {
    if (isClosed) return resume(Effect.void)
    end = () => resume(Effect.void)
  })
  return { closed }
})
