// SPDX-License-Identifier: Apache-2.0
/**
 * The runs of the copy service that make up one update, and how the other ranks learn of what fails outside them.
 *
 * Invariant: a rank never stops before the last run without the others knowing: in a run the service tells them, before or
 * between two runs a refused one does.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { Rank } from "../base/Ids.ts"
import {
  type CopyError,
  type CopyReport,
  type CopyServiceShape,
  copyError,
  type RunOptions
} from "../service/CopyService.ts"
import type { ReshardError } from "./ReshardError.ts"

/** Why an update ends on a rank: its own check or memory, or the run of the copy service. */
export type UpdateFailure = ReshardError | CopyError

const op = "executeReshardPlan"

/** What others get to know of a failure of this rank. */
export const refusalOf = (rank: Rank, error: UpdateFailure): CopyError =>
  error._tag === "CopyError"
    ? error
    : copyError("TransferFailed", [rank], { ...error.reason, rank, op, detail: error.message })

/** The runs of one update. */
export interface PlanRuns {
  /** One run; `finish` is part of it, so that a rank which cannot write is not the only one that knows. */
  readonly run: (
    options: Omit<RunOptions, "finish">,
    finish: Effect.Effect<void, UpdateFailure> | undefined
  ) => Effect.Effect<CopyReport, UpdateFailure>
  /** How many runs the update takes, as far as is known. */
  readonly total: () => number
  /** Refuses the next run where the effect ends without the last one and the others do not know. */
  readonly guard: <A, R>(effect: Effect.Effect<A, UpdateFailure, R>) => Effect.Effect<A, UpdateFailure, R>
}

/** Runs over a copy service; this rank needs `own` of them by itself. */
export const makePlanRuns = (service: CopyServiceShape, own: () => number, together = false): PlanRuns => {
  const { rank } = service
  let [done, total] = [0, 1]
  // While a run is under way, the service itself reports to the others how it ended.
  let isKnown = false
  return {
    run: (options, finish) =>
      Effect.suspend(() => {
        isKnown = true
        let unwritten: UpdateFailure | undefined
        const finishing =
          finish === undefined
            ? {}
            : {
                finish: Effect.mapError(finish, (error) => {
                  unwritten = error
                  return refusalOf(rank, error)
                })
              }
        return service.run({ ...options, ...finishing, together }).pipe(
          Effect.mapError((error): UpdateFailure => unwritten ?? error),
          Effect.map((report) => {
            total = Math.max(own(), report.planRuns ?? 1)
            isKnown = ++done >= total
            return report
          })
        )
      }),
    total: () => Math.max(total, own()),
    guard: (effect) =>
      Effect.onExit(effect, (exit) => {
        if (isKnown || Exit.isSuccess(exit)) return Effect.void
        const failed = exit.cause.reasons.find((reason) => reason._tag === "Fail")
        // Before the first run, nobody waits for a rank that is only interrupted.
        if (failed === undefined && done === 0) return Effect.void
        const refuse =
          failed === undefined
            ? copyError("TransferFailed", [rank], {
                rank,
                op,
                isRetryable: true,
                detail: `Rank ${rank} was interrupted between two waves.`,
                remedy: "See the output of that rank for the reason, then run again."
              })
            : refusalOf(rank, failed.error)
        return Effect.ignore(service.run({ refuse }))
      })
  }
}
