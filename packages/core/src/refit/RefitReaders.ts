// SPDX-License-Identifier: Apache-2.0
/**
 * Who reads the weights in use, in which of two places, and which versions each of them saw. A place that is read is not
 * written: `untilUnread` waits for its readers.
 */
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { TensorDict } from "../tensor/TensorDict.ts"
import { type RefitError, refitError } from "./RefitError.ts"
import type { RefitVersion } from "./RefitState.ts"
import type { Place } from "./RefitWeights.ts"

/** The weights as one reader has them. */
export interface Reading {
  /** As it was at the start. */
  readonly version: RefitVersion
  readonly weights: TensorDict
}

/** What a reader made, with every version that was in use meanwhile, the first being that of the reading. */
export interface Used<A> {
  readonly value: A
  readonly versions: ReadonlyArray<RefitVersion>
}

/** Counts who reads the weights, so that a commit waits for readers and readers for a commit. */
export class RefitReaders {
  readonly #counts: Record<Place, number> = { live: 0, spare: 0 }
  readonly #waiting = new Map<Place, Deferred.Deferred<void>>()
  readonly #seen = new Set<Array<RefitVersion>>()

  /** Another version is in use: all who read now see it. */
  show(version: RefitVersion): void {
    for (const versions of this.#seen) versions.push(version)
  }

  read<A, E, R>(
    place: Place,
    reading: Reading,
    program: (reading: Reading) => Effect.Effect<A, E, R>
  ): Effect.Effect<Used<A>, E, R> {
    return Effect.suspend(() => {
      const versions = [reading.version]
      this.#seen.add(versions)
      this.#counts[place] += 1
      const leave = Effect.suspend(() => {
        this.#seen.delete(versions)
        this.#counts[place] -= 1
        const free = this.#waiting.get(place)
        if (this.#counts[place] > 0 || free === undefined) return Effect.void
        this.#waiting.delete(place)
        return Deferred.succeed(free, undefined)
      })
      return Effect.map(program(reading), (value) => ({ value, versions })).pipe(Effect.ensuring(leave))
    })
  }

  /** Nobody reads the place that is about to be written. */
  untilUnread(place: Place, deadline: Duration.Input = Duration.seconds(60)): Effect.Effect<void, RefitError> {
    return Effect.suspend(() => {
      if (this.#counts[place] === 0) return Effect.void
      const free = Deferred.makeUnsafe<void>()
      this.#waiting.set(place, free)
      return Deferred.await(free).pipe(
        Effect.timeoutOrElse({
          duration: deadline,
          orElse: () =>
            Effect.fail(
              refitError("DeadlineExceeded", {
                detail: `${this.#counts[place]} readers still use the version before the one in use.`,
                remedy: "Let them end, then commit again.",
                isRetryable: true
              })
            )
        })
      )
    })
  }
}
