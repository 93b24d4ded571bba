// SPDX-License-Identifier: Apache-2.0
/**
 * Which commands wait for which: work holds names, and begins when everything that came before it with one of these names
 * has ended.
 *
 * Invariant: order is that of arrival, so no two pieces of work ever wait for each other.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"

export interface Lanes {
  /**
   * Takes a place in the lanes now; the answer runs the work once it is due. Work waits for `after` too, without being
   * waited for under those names.
   */
  readonly enter: (
    holds: ReadonlyArray<string>,
    after: ReadonlyArray<string>
  ) => <A, E, R>(work: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
}

export const makeLanes = (): Lanes => {
  const last = new Map<string, Deferred.Deferred<void>>()
  return {
    enter: (holds, after) => {
      const before = [...new Set([...holds, ...after])].flatMap((name) => last.get(name) ?? [])
      const done = Deferred.makeUnsafe<void>()
      for (const name of holds) last.set(name, done)
      const leave = Effect.suspend(() => {
        for (const name of holds) if (last.get(name) === done) last.delete(name)
        return Deferred.succeed(done, undefined)
      })
      return (work) =>
        Effect.ensuring(
          Effect.andThen(
            Effect.forEach(before, (other) => Deferred.await(other), { discard: true }),
            work
          ),
          leave
        )
    }
  }
}
