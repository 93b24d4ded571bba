// SPDX-License-Identifier: Apache-2.0
/**
 * Waits of consumers: on the host until a copy has ended, or on a stream behind it.
 *
 * Invariant: a wait that is late or interrupted changes nothing, and may be repeated.
 */
import * as Effect from "effect/Effect"
import { pollUntil } from "../../service/BusyPolling.ts"
import type { ReplayTransferError } from "../../service/ReplayTransferBackend.ts"
import { type BackendRing, bounded } from "./ring.ts"
import { changed, endRun, isUnderWay, type KnownCopy, type ReplaySlot, settle } from "./slot.ts"
import type { makeSubmission } from "./submission.ts"

type Doing<A> = Effect.Effect<A, ReplayTransferError>

export const makeWaiting = (ring: BackendRing, { makeRecorded }: ReturnType<typeof makeSubmission>) => {
  /**
   * Waits for the slot's copy; for the next one where none is under way, or the one under way does not count.
   * `whileRunning` says what to do once the device has the copy.
   */
  const awaitCopy = (op: string, slot: ReplaySlot, whileRunning: (running: KnownCopy) => Doing<void>): Doing<void> => {
    const step: Doing<void> = Effect.suspend(() => {
      settle(slot)
      if (slot.phase === "ready") return Effect.void
      if (slot.failure !== undefined) return Effect.fail(slot.failure)
      const isHopeful = isUnderWay(slot) && !slot.isCleared
      if (ring.isClosed && !isHopeful) return Effect.fail(ring.refusals.closed(op, slot.index))
      const { phase, current, version } = slot
      if (phase === "running" && isHopeful) return whileRunning(current!)
      if (phase === "recorded") {
        const made = makeRecorded(slot, current!, slot.run)
        return Effect.andThen(bounded(ring, op, slot, "The copy did not end into", made), step)
      }
      const what = isUnderWay(slot) ? "The copy did not end into" : "Nothing was submitted into"
      return Effect.andThen(bounded(ring, op, slot, what, changed(slot, version)), step)
    })
    return step
  }

  const waitReady = (slot: ReplaySlot): Doing<void> => {
    const waiting: Doing<void> = awaitCopy("waitReady", slot, ({ copy }) => {
      const { run } = slot
      const isOver = (): boolean => {
        if (slot.run === run) settle(slot)
        return slot.run !== run || slot.phase !== "running"
      }
      const slept = Effect.matchEffect(copy.wait, {
        onSuccess: () => Effect.sync(() => endRun(slot, run, undefined)),
        onFailure: (error) => Effect.sync(() => endRun(slot, run, error))
      })
      const ended =
        ring.pollMillis > 0
          ? Effect.andThen(
              pollUntil(isOver, ring.pollMillis),
              Effect.suspend(() => (isOver() ? Effect.void : slept))
            )
          : slept
      return Effect.andThen(bounded(ring, "waitReady", slot, "The copy did not end into", ended), waiting)
    })
    return waiting
  }

  return { awaitCopy, waitReady }
}
