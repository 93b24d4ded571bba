// SPDX-License-Identifier: Apache-2.0
/**
 * One staged transfer: three stages work through the rounds side by side, each round after the one before.
 *
 * | stage | does | waits for |
 * | --- | --- | --- |
 * | fill | device to buffers, then states Ready | the slot, which has been on the wire and was emptied |
 * | wire | buffers to peers, then states Done | the peers' Ready |
 * | empty | buffers to device | the wire |
 *
 * Invariant: it ends only when no stage touches memory any more, also where it failed or was cancelled.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import type { UnreadableAnswer } from "@tensorferry/core/group/Exchange"
import {
  type CopyDriverError,
  type CopyDriverReason,
  type CopyDriverShape,
  copyDriverError,
  type InFlight,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Move } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import { type StagedRound, slotCount } from "./rounds.ts"
import type { Turns } from "./turns.ts"

/** How staging fails on one rank. */
export const stagingErrors = (backend: string, rank: Rank) => {
  const fail = (tag: CopyDriverReason["_tag"], detail: string, remedy: string): CopyDriverError =>
    copyDriverError(tag, { backend, rank, detail, remedy })
  return {
    fail,
    ofEngine: (error: TensorError, op: string): CopyDriverError =>
      copyDriverError("TransportFailed", { ...error.reason, backend, rank, op }),
    ofGroup: (error: ProcessGroupError | UnreadableAnswer): CopyDriverError =>
      error._tag === "UnreadableAnswer"
        ? fail("TransportFailed", error.message, "Run the same version of tensorferry on every rank.")
        : copyDriverError(error.reason._tag === "PeerGone" ? "PeerGone" : "TransportFailed", {
            ...error.reason,
            backend,
            rank,
            ...(error.ranks[0] === undefined ? {} : { peer: error.ranks[0] })
          }),
    peerGone: (peer: Rank): CopyDriverError =>
      copyDriverError("PeerGone", {
        backend,
        rank,
        peer,
        scope: "peer",
        detail: `Rank ${peer} is gone.`,
        remedy: "See that rank's own error, and start it again."
      })
  }
}

/** What a transfer works with. */
export interface StagingParts {
  readonly engine: TensorEngineShape
  readonly host: CopyDriverShape
  readonly errors: ReturnType<typeof stagingErrors>
  /** Peers may read a buffer after the host's driver is done with it here. */
  readonly isFetched: boolean
}

type WiredRound = StagedRound & { readonly wire: Program }

const peersOf = (round: WiredRound | undefined): ReadonlyArray<Rank> => [
  ...new Set(round?.messages.map(({ peer }) => peer))
]

/** Begins; work goes on in `scope`. */
export const transferRounds = (
  { engine, host, errors, isFetched }: StagingParts,
  rounds: ReadonlyArray<WiredRound>,
  turns: Turns,
  scope: Scope.Scope
): Effect.Effect<InFlight> =>
  Effect.gen(function* () {
    let movedBytes = 0
    let flying: InFlight | undefined
    // A copy that has begun is waited for, so that memory is at rest when the transfer has ended.
    const copy = (op: string, moves: ReadonlyArray<Move>) =>
      moves.length === 0
        ? Effect.void
        : Effect.uninterruptible(Effect.mapError(engine.copy(moves), (error) => errors.ofEngine(error, op)))
    const peersSaid = (kind: "Ready" | "Done", at: number) =>
      Effect.mapError(turns.await(kind, peersOf(rounds[at]), at), errors.peerGone)
    const each = (work: (round: WiredRound, at: number) => Effect.Effect<void, CopyDriverError>) =>
      Effect.forEach(rounds, work, { discard: true })

    const fill = each((round, at) =>
      Effect.gen(function* () {
        const before = at - slotCount
        yield* turns.reach("empty", before)
        if (isFetched && before >= 0) yield* peersSaid("Done", before)
        yield* copy("pack", round.pack)
        yield* turns.pass("fill", at)
        yield* turns.tell("Ready", peersOf(round), at)
      })
    )
    const wire = each((round, at) =>
      Effect.gen(function* () {
        yield* turns.reach("fill", at)
        yield* peersSaid("Ready", at)
        yield* Effect.acquireUseRelease(
          Effect.tap(host.start(round.wire), (started) =>
            Effect.sync(() => {
              flying = started
            })
          ),
          (started) => started.await,
          (started, exit) => (Exit.isSuccess(exit) ? Effect.void : started.cancel)
        )
        flying = undefined
        movedBytes += round.receivedBytes
        yield* turns.pass("wire", at)
        if (isFetched) yield* turns.tell("Done", peersOf(round), at)
      })
    )
    const empty = each((round, at) =>
      Effect.gen(function* () {
        yield* turns.reach("wire", at)
        yield* copy("unpack", round.unpack)
        yield* turns.pass("empty", at)
      })
    )
    const last = rounds.length - 1
    // Buffers are the next transfer's once this one has ended.
    const left = isFetched && last >= 0 ? Effect.forEach(rounds, (_, at) => peersSaid("Done", at)) : Effect.void
    const all = Effect.andThen(Effect.all([fill, wire, empty], { concurrency: "unbounded", discard: true }), left)
    const fiber = yield* Effect.forkIn(Effect.ensuring(all, turns.end), scope)
    return {
      isComplete: Effect.sync(() => fiber.pollUnsafe() !== undefined),
      await: Effect.flatMap(Fiber.await(fiber), (exit) =>
        Exit.isSuccess(exit) ? Effect.void : Effect.failCause(exit.cause)
      ),
      cancel: Fiber.interrupt(fiber),
      movedBytes: Effect.suspend(() =>
        flying === undefined ? Effect.succeed(movedBytes) : Effect.map(flying.movedBytes, (bytes) => movedBytes + bytes)
      )
    }
  })
