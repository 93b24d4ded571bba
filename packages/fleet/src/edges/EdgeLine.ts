// SPDX-License-Identifier: Apache-2.0
/**
 * An edge as either end has it: a group of two, and two windows, memory of fixed size through which all bytes go in turn, each
 * with a copy service of its own. Every run of a service moves the whole window, so after the first one it is a known update,
 * which costs no agreement. It is open for as long as its scope, for any number of versions.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Device } from "@tensorferry/core/tensor/Device"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import type * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import { type FleetError, fleetError } from "../FleetError.ts"
import { copyWindow, digestPieces } from "./Pieces.ts"
import type { SendLimit } from "./SendLimit.ts"

/** What moves tensors within the group of an edge. */
export type Transport = Layer.Layer<CopyService | TensorEngine, unknown, ProcessGroup>

/** How members reach each other. */
export interface EdgeOptions {
  readonly transport: Transport
  /** Where others reach this process; 127.0.0.1 by default. */
  readonly host?: string
  /** Needed for any other address. */
  readonly token?: string
  /** How long an edge waits for the other end to show progress. */
  readonly deadline: Duration.Duration
  /** Where the weights of this member are. */
  readonly device: Device
  /** What limits sending to ranks that are not near; nothing where it is left out. */
  readonly limit?: SendLimit
  /** Whether a rank is reached without a link. */
  readonly isNear?: (rank: Rank) => boolean
  /** What goes first where sending is limited. */
  readonly first?: "updates" | "joins"
  /** Ends when this member is none any more. */
  readonly untilRemoved?: (member: string) => Effect.Effect<void>
  /** Hears of the member at the other end of an edge that has ended from there. */
  readonly onGone?: (member: string) => Effect.Effect<void>
}

/** The failure of another member, with what it did not do. */
export const failedWith =
  (peer: string, doing: string) =>
  (cause: unknown): FleetError =>
    fleetError("PeerFailed", [], {
      detail: `Member ${peer} ${doing}: ${cause instanceof Error ? cause.message : String(cause)}`,
      remedy: "Another member is asked instead; see whether this one runs.",
      scope: "peer",
      isRetryable: true
    })

/** Which end of an edge this is, and where both meet. */
export interface LineInput {
  /** The parent is rank 0. */
  readonly rank: 0 | 1
  /** Id of the member at the other end. */
  readonly peer: string
  readonly host: string
  readonly port: number
  readonly windowBytes: number
  readonly onListening?: (port: number) => Effect.Effect<void>
}

/** Windows of a line: while the bytes of one are proven, agreed on and copied, those of the other keep the link busy. */
const windowsOfLine = 2

/** A window, and what moves its bytes. */
interface Slot {
  readonly copy: CopyService["Service"]
  readonly engine: TensorEngine["Service"]
  readonly window: Tensor
  /** Ends with the last use of the window. */
  last: Effect.Effect<void, unknown>
}

/** Opens this end until the scope closes. */
export const openLine = Effect.fnUntraced(function* (input: LineInput, options: EdgeOptions) {
  const { rank, peer, host, port, windowBytes, onListening } = input
  const { deadline, token } = options
  const group = yield* ProcessGroupTcp.make({
    rank,
    size: 2,
    host,
    port,
    deadline,
    connectDeadline: deadline,
    ...(token === undefined ? {} : { token }),
    ...(onListening === undefined ? {} : { onListening })
  })
  const lane = yield* group.lane("fleet")
  const posts = yield* Queue.unbounded<Uint8Array, Cause.Done>()
  const gone = yield* Deferred.make<never, FleetError>()
  const lose = (why: string): void => {
    Deferred.doneUnsafe(gone, Effect.fail(failedWith(peer, "left")(why)))
    Queue.endUnsafe(posts)
  }
  yield* lane.listen({
    post: (_, payload) => void Queue.offerUnsafe(posts, payload),
    gone: () => lose("its connection is gone")
  })
  if (options.onGone !== undefined) {
    const gives = Effect.catch(Deferred.await(gone), () => options.onGone!(peer))
    yield* Effect.forkScoped(gives, { startImmediately: true })
  }
  const scope = yield* Effect.scope
  const slots: Array<Slot> = []
  for (let at = 0; at < windowsOfLine; at++) {
    const services = yield* Layer.build(
      Layer.provide(Layer.fresh(options.transport), Layer.succeed(ProcessGroup, group))
    )
    const [copy, engine] = [Context.get(services, CopyService), Context.get(services, TensorEngine)]
    const window = yield* engine.allocate("uint8", [windowBytes], options.device)
    slots.push({ copy, engine, window, last: Effect.void })
  }
  const [{ engine }] = slots as [Slot, ...Array<Slot>]
  let turn = 0
  /** Begins when the next window is free. What it gives ends with the work; a failure of that is the line's. */
  const begin = (work: (slot: Slot) => Effect.Effect<void, unknown>) =>
    Effect.gen(function* () {
      const slot = slots[turn++ % slots.length]!
      yield* slot.last
      const working = Effect.tapError(work(slot), (cause) =>
        Effect.sync(() => lose(cause instanceof Error ? cause.message : String(cause)))
      )
      slot.last = Fiber.join(yield* Effect.forkIn(working, scope, { startImmediately: true }))
      return slot.last
    })
  return {
    windowBytes,
    /** Says something to the other end. */
    tell: (payload: Uint8Array): Effect.Effect<void> => lane.post([1 - rank], payload),
    /** What the other end said next; fails when it is gone. */
    heard: Effect.catch(Queue.take(posts), () => Deferred.await(gone)),
    /** Fails when the other end is gone. */
    untilGone: Deferred.await(gone),
    /** Counts the other end as gone. */
    lose: (why: string): Effect.Effect<void> => Effect.sync(() => lose(why)),
    /**
     * Begins to send these pieces, which fit a window, when one is free. What it gives ends when they are there; until then they
     * must not change.
     */
    send: (pieces: ReadonlyArray<Tensor>) =>
      begin(({ copy, engine: own, window }) =>
        Effect.andThen(
          copyWindow(own, window, pieces, "to window"),
          Effect.andThen(copy.submitSend(window, 1 - rank, 0), Effect.asVoid(copy.run()))
        )
      ),
    /** Begins to receive these pieces when a window is free. What it gives ends when they are here. */
    receive: (pieces: ReadonlyArray<Tensor>) =>
      begin(({ copy, engine: own, window }) =>
        Effect.andThen(
          Effect.andThen(copy.submitRecv(window, 1 - rank, 0), Effect.asVoid(copy.run())),
          copyWindow(own, window, pieces, "from window")
        )
      ),
    /** Ends when all that was begun has ended. */
    idle: Effect.suspend(() =>
      Effect.forEach(
        slots.map(({ last }) => last),
        (last) => last,
        { discard: true }
      )
    ),
    /** The digest of pieces. */
    digest: (pieces: ReadonlyArray<Tensor>): Effect.Effect<string, unknown> =>
      Effect.provideService(digestPieces(pieces), TensorEngine, engine)
  }
})

/** One end of an edge. */
export type Line = Effect.Success<ReturnType<typeof openLine>>
