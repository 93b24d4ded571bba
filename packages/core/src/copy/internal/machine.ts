// SPDX-License-Identifier: Apache-2.0
/**
 * Keeps the state of a copy service and carries out what its transitions ask for.
 *
 * Invariant: the state changes at once, before anything that follows from the change is carried out.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { type CopyError, copyError } from "../../service/CopyService.ts"
import { type Agreement, resync } from "./handshake.ts"
import type { CopyParts } from "./parts.ts"
import {
  begin,
  type CopyRunAction,
  type CopyRunEvent,
  type CopyRunState,
  initialState,
  isReusable,
  type LiveDriver,
  type PendingAgreement,
  step
} from "./runState.ts"

export interface CopyMachine {
  readonly state: () => CopyRunState
  /** Begins a run; fails where another one is in progress. */
  readonly begin: Effect.Effect<void, CopyError>
  /** Begins to agree; an interruption of whoever waits for it does not take the statement back. */
  readonly agree: <A extends Agreement | undefined>(
    statement: Effect.Effect<A, CopyError>
  ) => Effect.Effect<Fiber.Fiber<A, CopyError>>
  /** Takes an event and does what follows from it. */
  readonly on: (event: CopyRunEvent) => Effect.Effect<void>
}

export const makeMachine = (
  { group, scope, backend, rank, calls, signals: { alarm } }: CopyParts,
  driver: LiveDriver,
  /** Has all ranks meet, and states this failure to them. */
  withdraw: (fault: CopyError) => Effect.Effect<unknown, CopyError>
): CopyMachine => {
  let state = initialState(driver)

  /**
   * After an interruption while the others were still to agree: they will, and begin. The program is closed by then, so
   * that no byte of this rank moves any more; its start only reports to the others. False where they failed to agree.
   */
  const standBy = ({ agreeing, program, driver: known }: PendingAgreement): Effect.Effect<boolean> =>
    Effect.gen(function* () {
      const agreement = yield* Effect.result(Fiber.join(agreeing))
      if (Result.isFailure(agreement) || agreement.success === undefined) return false
      yield* alarm.sound
      if (agreement.success.mustRebuild) yield* on({ _tag: "Outdated" })
      if (known !== undefined && isReusable(program, agreement.success)) {
        yield* calls.abandon(known, program?.rounds[0])
      }
      return true
    })

  const interrupted = (): CopyError =>
    copyError("TransferFailed", [rank], {
      backend,
      rank,
      op: "run",
      isRetryable: true,
      detail: `Rank ${rank} was interrupted in the middle of the run.`,
      remedy: "See the output of that rank for the reason, then run again."
    })

  const inBackground = (report: Effect.Effect<unknown, CopyError>): Effect.Effect<void> =>
    Effect.flatMap(Effect.forkIn(Effect.interruptible(report), scope, { startImmediately: true }), (leaving) =>
      on({ _tag: "Left", leaving })
    )

  /** After an interruption in the middle of a run: nobody shall wait for this rank longer than needed. */
  const leave = (pending: PendingAgreement | undefined): Effect.Effect<void> =>
    inBackground(
      Effect.gen(function* () {
        if (pending === undefined) yield* alarm.sound
        else if (!(yield* standBy(pending))) return
        yield* resync({ group, alarm }, interrupted())
      })
    )

  const perform = (action: CopyRunAction): Effect.Effect<void> => {
    if (action._tag === "Close") return Scope.close(action.scope, Exit.void)
    return action._tag === "Leave" ? leave(action.pending) : inBackground(withdraw(interrupted()))
  }

  const on = (event: CopyRunEvent): Effect.Effect<void> =>
    Effect.suspend(() => {
      const next = step(state, event)
      state = next.state
      return next.actions.length === 0 ? Effect.void : Effect.forEach(next.actions, perform, { discard: true })
    })

  return {
    state: () => state,
    begin: Effect.suspend(() => {
      const begun = begin(state)
      if (Result.isSuccess(begun)) {
        state = begun.success
        return Effect.void
      }
      return Effect.fail(
        copyError(begun.failure, [rank], {
          backend,
          rank,
          op: "run",
          isRetryable: true,
          detail: "Another run is in progress.",
          remedy: "Wait for it to end; queue operations for the next one."
        })
      )
    }),
    agree: (statement) =>
      Effect.uninterruptible(
        Effect.gen(function* () {
          // The ranks may meet as soon as the statement is out, so it waits for the state that says so.
          const isOut = Deferred.makeUnsafe<void>()
          const stated = Effect.andThen(Deferred.await(isOut), statement)
          const agreeing = yield* Effect.forkIn(Effect.interruptible(stated), scope, { startImmediately: true })
          yield* on({ _tag: "Stated", agreeing })
          Deferred.doneUnsafe(isOut, Exit.void)
          return agreeing
        })
      ),
    on
  }
}
