// SPDX-License-Identifier: Apache-2.0
/**
 * What a commit comes to, and the pause around it.
 *
 * Invariant: the judgement is pure and comes before anything that is in use is touched.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Digest } from "../base/Digest.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import { contentDigest } from "./ContentDigest.ts"
import { type RefitError, refitError } from "./RefitError.ts"
import type { RefitSpec } from "./RefitSpec.ts"
import type { RefitState, RefitVersion } from "./RefitState.ts"
import type { RefitUpdate, RefitWarning } from "./RefitUpdate.ts"

const defaultRepeatLimit = 3

/** What is known when a commit is asked for. */
export interface CommitInput {
  readonly state: RefitState
  readonly update: RefitUpdate
  /** The digests of all tensors as they would be after the commit. */
  readonly digests: ReadonlyMap<string, Digest>
  /** How often in a row the content in use was committed. */
  readonly repeats: number
  /** The identity that the sender states. */
  readonly expected: Digest | undefined
}

/** A commit of what is in use already, or of new content, with the tensors to write. */
export type CommitVerdict = { readonly repeats: number; readonly warnings: ReadonlyArray<RefitWarning> } & (
  | { readonly _tag: "Same"; readonly version: RefitVersion }
  | {
      readonly _tag: "New"
      readonly version: RefitVersion
      readonly previous: RefitVersion | undefined
      readonly written: ReadonlyArray<string>
    }
)

/** Whether an open update may be committed, and what that changes. */
export const judgeCommit = (
  spec: RefitSpec,
  { state, update, digests, repeats, expected }: CommitInput
): Result.Result<CommitVerdict, RefitError> => {
  const { label, kind } = state.open!
  const lacking = update.lacking(kind, digests)
  if (lacking !== undefined) return Result.fail(lacking)
  const id = contentDigest(digests)
  if (expected !== undefined && expected !== id) {
    return Result.fail(
      refitError("DigestMismatch", {
        detail: `The content is ${id}; the sender states ${expected}.`,
        remedy: "Send the update again."
      })
    )
  }
  const { weights } = state
  const previous = weights._tag === "Ready" || weights._tag === "Asleep" ? weights.version : undefined
  const isSame = previous?.id === id && weights._tag === "Ready"
  const sameInARow = isSame ? repeats + 1 : 1
  const warnings: Array<RefitWarning> = [...update.warnings]
  if (sameInARow >= (spec.repeatLimit ?? defaultRepeatLimit)) {
    const detail = `The same content was committed ${sameInARow} times in a row: does the sender send what it trains?`
    warnings.push({ kind: "Repeated", detail })
  }
  const common = { repeats: sameInARow, warnings }
  if (isSame) return Result.succeed({ _tag: "Same", version: previous, ...common })
  const written = [...spec.tensors.keys()].filter(
    (name) => spec.publish === "exchange" || update.has(spec.aliases?.get(name) ?? name)
  )
  return Result.succeed({ _tag: "New", version: { id, label }, previous, written, ...common })
}

/** Runs between the pause and the resumption that the spec asks for; resumes however it ends. */
export const paused = <A>(
  spec: RefitSpec,
  effect: Effect.Effect<A, RefitError, TensorEngine>,
  onUnpaused: Effect.Effect<void>
): Effect.Effect<A, RefitError, TensorEngine> => {
  const named = (what: string) => (error: { readonly message: string }) =>
    refitError("CommitFailed", {
      detail: `${what} failed: ${error.message}`,
      remedy: "The update was closed; correct the cause, then begin an update again."
    })
  const pause = Effect.tapError(Effect.mapError(spec.pause ?? Effect.void, named("Pausing")), () => onUnpaused)
  return Effect.uninterruptibleMask((unmasked) =>
    Effect.gen(function* () {
      yield* unmasked(pause)
      const exit = yield* Effect.exit(unmasked(effect))
      yield* Effect.mapError(spec.resume ?? Effect.void, named("Resuming"))
      return yield* exit
    })
  )
}
