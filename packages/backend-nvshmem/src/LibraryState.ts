// SPDX-License-Identifier: Apache-2.0
/**
 * What is known of NVSHMEM on a device of this process beyond the life of a driver: that it cannot be used any more, or that
 * a former driver is still leaving its job.
 *
 * Invariant: once marked unusable, the library is neither used nor finalised again in this process: it would wait for PEs that are
 * gone. Only a new process helps.
 */
import * as Effect from "effect/Effect"

const reasons = new Map<number, string>()
const partings = new Map<number, Effect.Effect<void>>()

export const reasonUnusable = (ordinal: number): string | undefined => reasons.get(ordinal)

/** Keeps the first reason and says it. */
export const markUnusable = (ordinal: number, why: string): Effect.Effect<void> =>
  Effect.suspend(() => {
    if (reasons.has(ordinal)) return Effect.void
    reasons.set(ordinal, why)
    return Effect.logWarning(
      `NVSHMEM of this process (device ${ordinal}) is left as it is and not finalised: ${why} Start the process again to use it.`
    )
  })

/** The leaving of a former driver, to be waited for before another joins. */
export const departureOf = (ordinal: number): Effect.Effect<void> => partings.get(ordinal) ?? Effect.void

export const setDeparture = (ordinal: number, parting: Effect.Effect<void>): void => {
  partings.set(ordinal, parting)
}

/** For tests, which give the library a new life without a new process. */
export const forgetAll = (): void => {
  reasons.clear()
  partings.clear()
}
