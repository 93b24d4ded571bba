// SPDX-License-Identifier: Apache-2.0
/**
 * An engine whose copies and reductions are done late, in a seeded order, and only when the test lets them. What waits for
 * no one shows: bytes do not move before their turn, so a reader that came too early reads the old ones.
 *
 * Invariant: work that was interrupted before its turn is never done.
 */

import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

/** The work that waits on any number of engines. */
export interface Delays {
  /** Copies and reductions that wait for their turn. */
  readonly waiting: () => number
  /** Does one of them; false where none waits. */
  readonly releaseOne: Effect.Effect<boolean>
  /** Does whatever waits or will wait, until it is interrupted. */
  readonly releaseAlways: Effect.Effect<never>
  /** The work, done when its turn comes. */
  readonly delay: <A, E>(work: Effect.Effect<A, E>) => Effect.Effect<A, E>
}

/** Delays whose order is the same for the same seed. */
export const makeDelays = (seed: number): Delays => {
  const waiting: Array<Deferred.Deferred<void>> = []
  let state = seed >>> 0
  const below = (limit: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * limit)
  }
  /** Newer work first, more often than not. */
  const choose = (): number => Math.max(below(waiting.length), below(waiting.length))
  const releaseOne = Effect.suspend(() => {
    const [turn] = waiting.length === 0 ? [] : waiting.splice(choose(), 1)
    return turn === undefined ? Effect.succeed(false) : Effect.as(Deferred.succeed(turn, undefined), true)
  })
  // Everything else that can go on does so before the next piece of work is let through.
  const turn = Effect.callback<void>((resume) => {
    const handle = setImmediate(() => resume(Effect.void))
    return Effect.sync(() => clearImmediate(handle))
  })
  return {
    waiting: () => waiting.length,
    releaseOne,
    releaseAlways: Effect.forever(Effect.andThen(turn, releaseOne)),
    delay: (work) =>
      Effect.suspend(() => {
        const turnOf = Deferred.makeUnsafe<void>()
        waiting.push(turnOf)
        const forget = Effect.sync(() => {
          const at = waiting.indexOf(turnOf)
          if (at >= 0) waiting.splice(at, 1)
        })
        return Effect.andThen(
          Effect.onInterrupt(Deferred.await(turnOf), () => forget),
          work
        )
      })
  }
}

/** An engine whose work ends later than it might, by seeded delays. */
export const delayedEngine = (engine: TensorEngineShape, delays: Delays): TensorEngineShape => ({
  ...engine,
  name: `${engine.name}, delayed`,
  copy: (moves) => delays.delay(engine.copy(moves)),
  reduce: (dst, sources, op) => delays.delay(engine.reduce(dst, sources, op))
})

/** One engine per rank that builds the layer; all wait in the same line. */
export const delayedLayer = (make: () => TensorEngineShape, delays: Delays): Layer.Layer<TensorEngine> =>
  Layer.sync(TensorEngine, () => delayedEngine(make(), delays))
