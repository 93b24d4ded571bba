// SPDX-License-Identifier: Apache-2.0
/** What completes the bytes of a run, at most once in a run. */
import * as Effect from "effect/Effect"
import type { RunOptions } from "../../service/CopyService.ts"

/** The options of a run whose `finish` is carried out once. */
export interface OnceOptions extends RunOptions {
  /** `finish` has begun, and is not to be given up. */
  readonly isFinishing: () => boolean
}

/**
 * After a repetition that was given up, the bytes move again. What completes them may read what it writes, as a reduction
 * does, so it is neither left in the middle for that nor repeated.
 */
export const finishingOnce = (runOptions: RunOptions): OnceOptions => {
  const { finish } = runOptions
  let state: "waits" | "begun" | "done" = "waits"
  const isFinishing = () => state === "begun"
  if (finish === undefined) return { ...runOptions, isFinishing }
  const once = Effect.suspend(() => {
    if (state === "done") return Effect.void
    state = "begun"
    return Effect.tap(finish, () =>
      Effect.sync(() => {
        state = "done"
      })
    )
  })
  return { ...runOptions, isFinishing, finish: once }
}
