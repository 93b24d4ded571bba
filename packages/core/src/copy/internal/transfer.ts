// SPDX-License-Identifier: Apache-2.0
/**
 * Calls into a driver, each with a bound: those that end at once by their time, transfers by their progress.
 *
 * Invariant: whatever was started and is left is cancelled, also where the wait for the start itself was interrupted.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type { CopyDriverError, CopyDriverShape, InFlight, PeerTimes } from "../../service/CopyDriver.ts"
import { type CopyError, copyError } from "../../service/CopyService.ts"
import { endsWithin } from "../../service/endsWithin.ts"
import type { ProcessGroupShape } from "../../service/ProcessGroup.ts"
import { monotonicMillis, orAfterRunningTime } from "../../service/RunningTime.ts"
import { fromDriverError } from "../CopyFailures.ts"
import type { Round } from "./rounds.ts"

/** Calls into drivers of this name, for one rank. */
export const makeDriverCalls = (backend: string, group: ProcessGroupShape, deadline: Duration.Duration) => {
  const { rank } = group
  /** Why the latest transfer is being cancelled, before that has ended and its failure is known. */
  let overdue: CopyError | undefined

  /**
   * A driver's call that has no progress of its own to show. The bound is twice the deadline: a driver that waits for
   * its peers through the group fails at the deadline itself, and its error names the rank that did not come.
   */
  const bounded = <A, R>(op: string, call: Effect.Effect<A, CopyDriverError, R>): Effect.Effect<A, CopyError, R> => {
    const overdue = () =>
      Effect.fail(
        copyError("DeadlineExceeded", [rank], {
          backend: backend,
          rank,
          op,
          scope: "service",
          isRetryable: true,
          detail: `The driver's ${op} did not end for ${Duration.format(Duration.times(deadline, 2))}.`,
          remedy: "Look at the backend; raise the deadline if it is merely slow."
        })
      )
    const named = Effect.mapError(call, (error) => fromDriverError(rank, op, error))
    return Effect.uninterruptibleMask((restore) =>
      Effect.flatMap(Effect.forkChild(named, { startImmediately: true }), (fiber) => {
        // Most calls end at once, and need no timer.
        const exit = fiber.pollUnsafe()
        if (exit !== undefined) return exit
        const wait = orAfterRunningTime(Fiber.join(fiber), {
          duration: Duration.times(deadline, 2),
          orElse: () => Effect.andThen(Fiber.interrupt(fiber), overdue())
        })
        return Effect.onInterrupt(restore(wait), () => Fiber.interrupt(fiber))
      })
    )
  }

  /** Ends a transfer. A driver that does not end it in time is left with it; what it fails with next is named as its own. */
  const cancel = (inFlight: InFlight | undefined): Effect.Effect<void> => {
    if (inFlight === undefined) return Effect.void
    const limit = Duration.times(deadline, 2)
    const text = `Backend ${backend}, rank ${rank}: cancel did not end for ${Duration.format(limit)}, so memory of the run may still change.`
    return endsWithin(inFlight.cancel, limit, Effect.logError(text))
  }

  const timesOf = ({ peerTimes }: InFlight): Effect.Effect<ReadonlyArray<PeerTimes>> => peerTimes ?? Effect.succeed([])

  /** Waits for a round, as long as it makes progress; device times by peer, where the driver knows them. */
  const transfer = (
    driver: CopyDriverShape,
    round: Round,
    progress: (movedBytes: number) => Effect.Effect<void>
  ): Effect.Effect<ReadonlyArray<PeerTimes>, CopyError> =>
    Effect.suspend(() => {
      // Kept as soon as the driver has started: an interruption of the wait for `start` must cancel it too.
      let started: InFlight | undefined
      overdue = undefined
      const start = Effect.map(driver.start(round.program), (inFlight) => {
        started = inFlight
        return inFlight
      })
      const waitFor = Effect.fnUntraced(function* (inFlight: InFlight) {
        const interval = Math.min(200, 0.1 * Duration.toMillis(deadline))
        const watch = Effect.gen(function* () {
          let moved = yield* inFlight.movedBytes
          let last = yield* monotonicMillis
          let stalled = 0
          while (true) {
            yield* Effect.sleep(interval)
            const now = yield* monotonicMillis
            // Time in which this process was stopped does not count.
            stalled += Math.min(now - last, 2 * interval)
            last = now
            const current = yield* inFlight.movedBytes
            if (current > moved) {
              moved = current
              stalled = 0
              yield* group.reportProgress
              yield* progress(moved)
            } else if (stalled >= Duration.toMillis(deadline)) {
              const pending = [...new Set(round.program.messages.map((message) => message.peer))]
              const [message] = round.program.messages
              overdue = copyError("DeadlineExceeded", pending, {
                backend: driver.name,
                rank,
                op: "run",
                scope: "service",
                isRetryable: true,
                ...(pending[0] === undefined ? {} : { peer: pending[0] }),
                ...(message === undefined ? {} : { taskId: message.parts[0]!.taskId }),
                detail: `No byte moved for ${Duration.format(deadline)}; messages with rank ${pending.join(", ")} are not done.`,
                remedy: "Check that these ranks are alive; raise the deadline if they are merely slow."
              })
              return yield* overdue
            }
          }
        })
        const wait = Effect.mapError(inFlight.await, (error) => fromDriverError(rank, "run", error))
        yield* Effect.raceFirst(wait, watch)
      })
      const ended = (inFlight: InFlight) =>
        Effect.flatMap(inFlight.isComplete, (isComplete) =>
          isComplete
            ? Effect.mapError(inFlight.await, (error) => fromDriverError(rank, "run", error))
            : waitFor(inFlight)
        )
      const body = Effect.flatMap(bounded("start", start), (inFlight) =>
        Effect.flatMap(ended(inFlight), () => timesOf(inFlight))
      )
      return Effect.onExit(body, (exit) => (Exit.isSuccess(exit) ? Effect.void : cancel(started)))
    })

  /**
   * For a round that this rank will not do although the others begin it: started and cancelled, so that peers that wait
   * for this rank learn of it from the driver, as they do of a rank that stops in the middle.
   */
  const abandon = (driver: CopyDriverShape, round: Round | undefined): Effect.Effect<void> =>
    round === undefined
      ? Effect.void
      : Effect.ignore(Effect.flatMap(bounded("start", driver.start(round.program)), cancel))

  return { bounded, transfer, abandon, overdue: () => overdue }
}
