// SPDX-License-Identifier: Apache-2.0
/**
 * Keeps the state of a copy service and carries out what its transitions ask for.
 *
 * Invariant: the state changes at once, before anything that follows from the change is carried out.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { type CopyError, copyError } from "../../service/CopyService.ts"
import { resync } from "./handshake.ts"
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
  /** Takes an event and does what follows from it. */
  readonly on: (event: CopyRunEvent) => Effect.Effect<void>
}

export const makeMachine = (
  { group, scope, backend, rank, calls, alarm }: CopyParts,
  driver: LiveDriver
): CopyMachine => {
  let state = initialState(driver)

  /**
   * After an interruption while the others were still to agree: they will, and begin. The program is closed by then, so
   * that no byte of this rank moves any more; its start only reports to the others. False where they failed to agree.
   */
  const standBy = ({ agreeing, program, driver: known }: PendingAgreement): Effect.Effect<boolean> =>
    Effect.gen(function* () {
      const agreement = yield* Effect.result(Fiber.join(agreeing))
      if (Result.isFailure(agreement)) return false
      yield* group.alert
      if (agreement.success.mustRebuild) yield* on({ _tag: "Outdated" })
      if (known !== undefined && isReusable(program, agreement.success)) {
        yield* calls.abandon(known, program?.rounds[0])
      }
      return true
    })

  /** After an interruption in the middle of a run: nobody shall wait for this rank longer than needed. */
  const leave = (pending: PendingAgreement | undefined): Effect.Effect<void> => {
    const interrupted = copyError("TransferFailed", [rank], {
      backend,
      rank,
      op: "run",
      isRetryable: true,
      detail: `Rank ${rank} was interrupted in the middle of the run.`,
      remedy: "See the output of that rank for the reason, then run again."
    })
    const report = Effect.gen(function* () {
      if (pending === undefined) yield* group.alert
      else if (!(yield* standBy(pending))) return
      yield* resync({ group, alarm }, interrupted)
    })
    return Effect.flatMap(Effect.forkIn(report, scope, { startImmediately: true }), (leaving) =>
      on({ _tag: "Left", leaving })
    )
  }

  const perform = (action: CopyRunAction): Effect.Effect<void> =>
    action._tag === "Close" ? Scope.close(action.scope, Exit.void) : leave(action.pending)

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
    on
  }
}
