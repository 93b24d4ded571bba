// SPDX-License-Identifier: Apache-2.0
/** Several fibers that work at once and do one step each in the order of their numbers, as for a digest of a whole file. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"

/** Makes each call wait for that of the number before it, from 0 on. Whoever waits began after those that it waits for. */
export const inTurns = <A>(step: (at: number, value: A) => void): ((at: number, value: A) => Effect.Effect<void>) => {
  let next = 0
  const waiting = new Map<number, Deferred.Deferred<void>>()
  return (at, value) =>
    Effect.suspend(() => {
      const turn = at === next ? undefined : Deferred.makeUnsafe<void>()
      if (turn !== undefined) waiting.set(at, turn)
      return Effect.andThen(
        turn === undefined ? Effect.void : Deferred.await(turn),
        Effect.sync(() => {
          step(at, value)
          next = at + 1
          const following = waiting.get(next)
          waiting.delete(next)
          if (following !== undefined) Deferred.doneUnsafe(following, Effect.void)
        })
      )
    })
}
