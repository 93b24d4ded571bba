// SPDX-License-Identifier: Apache-2.0
/**
 * Transfers in which ranks push to each other: each rank's own moves, between two meetings of all.
 *
 * Invariant: memory that peers may push to counts as in use from this rank's consent until all ranks have reported that
 * their moves are over. Where they have not, it stays in use until the ranks have met once more.
 */
import type { CopyDriverError, InFlight } from "@tensorferry/core/service/CopyDriver"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { nothingToMove } from "@tensorferry/native/driver/Transfers"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { PushBarrier } from "./PushBarrier.ts"

/** Memory of runs that did not end together: peers may still write to it. */
export interface UnsettledPushes {
  /** Keeps what ends the use of the memory. */
  readonly add: (endUse: () => void) => void
  /** All ranks have met since, so nobody writes any more. */
  readonly settle: () => void
}

/** None yet. */
export const makeUnsettledPushes = (): UnsettledPushes => {
  let unsettled: Array<() => void> = []
  return {
    add: (endUse) => unsettled.push(endUse),
    settle: () => {
      const all = unsettled
      unsettled = []
      for (const endUse of all) endUse()
    }
  }
}

/** How long a cancelled rank waits for the others to stop pushing. */
const patience = Duration.seconds(2)

/** One rank's part in a start. */
export interface PushStart {
  /** Why this rank cannot take part. It still comes to the meetings, where others would wait for it. */
  readonly fault: CopyDriverError | undefined
  /** Marks the memory that peers push to as in use; gives back what ends that. */
  readonly occupy: () => () => void
  /** Starts this rank's own moves. */
  readonly moveHere: () => Result.Result<InFlight, CopyDriverError>
}

interface PushParts {
  readonly barrier: PushBarrier
  readonly errors: DriverErrors
  readonly unsettled: UnsettledPushes
}

/** Begins transfers: with the others' leave, and until all are done. */
export const makePushTransfers =
  ({ barrier, errors, unsettled }: PushParts) =>
  ({ fault, occupy, moveHere }: PushStart): Effect.Effect<InFlight> =>
    Effect.gen(function* () {
      let here: InFlight = nothingToMove
      let isCancelled = false
      let isCommitted = false
      let endUse = () => {}
      const declined = () =>
        fault ??
        (isCancelled ? errors.fail("Broken", "The transfer was cancelled.", { op: "run", scope: "op" }) : undefined)
      const meeting = yield* barrier.meet({
        declined,
        committed: () => {
          isCommitted = true
          endUse = occupy()
        },
        moves: Effect.suspend(() => {
          const refusal = declined()
          if (refusal !== undefined) return Effect.fail(refusal)
          const started = moveHere()
          if (Result.isFailure(started)) return Effect.fail(started.failure)
          here = started.success
          return here.await
        }),
        met: (isTogether) => {
          if (isTogether) endUse()
          else unsettled.add(endUse)
        }
      })
      // Peers that push notice soon; one that is frozen is not waited for, and its memory here is kept apart.
      const peersStop = Effect.asVoid(Effect.timeoutOption(Effect.exit(meeting.await), patience))
      return {
        isComplete: Effect.sync(meeting.isOver),
        await: meeting.await,
        cancel: Effect.suspend(() => {
          isCancelled = true
          return Effect.andThen(
            here.cancel,
            Effect.suspend(() => (isCommitted ? peersStop : Effect.void))
          )
        }),
        movedBytes: Effect.suspend(() => here.movedBytes),
        peerTimes: Effect.suspend(() => here.peerTimes ?? Effect.succeed([]))
      }
    })
