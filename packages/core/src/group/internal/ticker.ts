// SPDX-License-Identifier: Apache-2.0
/**
 * The clock of deadlines over sockets: it counts only time in which this process ran. A process that was stopped, or
 * starved of processor time, must not blame others for what it could not hear meanwhile.
 */
import * as Effect from "effect/Effect"

/** How fine the clock is: deadlines are met to within a twentieth. */
export const tickMillisOf = (deadlineMillis: number): number => Math.min(1000, Math.max(1, deadlineMillis / 20))

/** Calls `onTick` with the milliseconds counted so far, for ever. */
export const ticking = (tickMillis: number, onTick: (now: number) => void): Effect.Effect<never> =>
  Effect.suspend(() => {
    let counted = 0
    let last = performance.now()
    const tick = Effect.sync(() => {
      const time = performance.now()
      counted += Math.min(time - last, 2 * tickMillis)
      last = time
      onTick(counted)
    })
    return Effect.forever(Effect.delay(tick, tickMillis))
  })

/** True at most once per interval of real time. */
export const makeThrottle = (intervalMillis: number): (() => boolean) => {
  let last = Number.NEGATIVE_INFINITY
  return () => {
    const time = performance.now()
    if (time - last < intervalMillis) return false
    last = time
    return true
  }
}
