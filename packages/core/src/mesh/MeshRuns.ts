// SPDX-License-Identifier: Apache-2.0
/**
 * The runs of the copy service that make up one update, and how the other ranks learn of what fails between them.
 *
 * Invariant: after the first run, a rank never stops before the last one without the others knowing: in a run the service
 * tells them, between two runs a refused one does.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { Rank } from "../base/Ids.ts"
import type { ReshardError } from "../reshard/ReshardError.ts"
import {
  type CopyError,
  type CopyReport,
  type CopyServiceShape,
  copyError,
  type RunOptions
} from "../service/CopyService.ts"

/** Why a mesh plan ends on a rank: its own check or memory, or the run of the copy service. */
export type MeshFailure = ReshardError | CopyError

/** What others get to know of a failure of this rank. */
export const tellOthers = (rank: Rank, error: MeshFailure): CopyError =>
  error._tag === "CopyError"
    ? error
    : copyError("TransferFailed", [rank], { ...error.reason, rank, op: "executeMeshPlan", detail: error.message })

/** The runs of one mesh plan, of which only the last lets the other ranks go. */
export interface MeshRuns {
  /** One run; after the last one nobody waits for this rank any more. */
  readonly run: (options: RunOptions & { readonly isLast: boolean }) => Effect.Effect<CopyReport, CopyError>
  /** Refuses the next run where the effect ends without the last one and the others do not know. */
  readonly guard: <A, R>(effect: Effect.Effect<A, MeshFailure, R>) => Effect.Effect<A, MeshFailure, R>
}

/** Runs over a copy service; a failure of this rank reaches the ranks that wait for it. */
export const makeMeshRuns = (service: CopyServiceShape): MeshRuns => {
  const { rank } = service
  // While a run is under way, the service itself reports to the others how it ended.
  let isKnown = false
  return {
    run: ({ isLast, ...options }) =>
      Effect.suspend(() => {
        isKnown = true
        return Effect.map(service.run(options), (report) => {
          isKnown = isLast
          return report
        })
      }),
    guard: (effect) =>
      Effect.onExit(effect, (exit) => {
        if (isKnown || Exit.isSuccess(exit)) return Effect.void
        const failed = exit.cause.reasons.find((reason) => reason._tag === "Fail")
        const refuse =
          failed === undefined
            ? copyError("TransferFailed", [rank], {
                rank,
                op: "executeMeshPlan",
                isRetryable: true,
                detail: `Rank ${rank} was interrupted between two waves.`,
                remedy: "See the output of that rank for the reason, then run again."
              })
            : tellOthers(rank, failed.error)
        return Effect.ignore(service.run({ refuse }))
      })
  }
}
