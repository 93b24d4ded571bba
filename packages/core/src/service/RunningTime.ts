// SPDX-License-Identifier: Apache-2.0
/**
 * The clock of deadlines: monotonic, and it counts only time in which this process ran. A process that was stopped, or
 * starved of processor time, must not blame others for what it could not hear meanwhile. Tests may set Effect's clock.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"

/** Milliseconds of the monotonic clock. Differences are durations, whatever happens to the time of day. */
export const monotonicMillis: Effect.Effect<number> = Effect.map(
  Clock.monotonicTimeNanos,
  (nanos) => Number(nanos / 1000n) / 1000
)

/** How fine the clock is: deadlines are met to within a twentieth. */
export const tickMillisOf = (deadlineMillis: number): number => Math.min(1000, Math.max(1, deadlineMillis / 20))

/** Calls `onTick` with the milliseconds counted so far, until they reach `untilMillis`. */
export const ticking = (
  tickMillis: number,
  onTick: (now: number) => void,
  untilMillis = Number.POSITIVE_INFINITY
): Effect.Effect<void> =>
  Effect.gen(function* () {
    let counted = 0
    let last = yield* monotonicMillis
    while (counted < untilMillis) {
      // At least a microsecond, the clock's step.
      yield* Effect.sleep(Math.max(0.001, Math.min(tickMillis, untilMillis - counted)))
      const time = yield* monotonicMillis
      counted += Math.min(time - last, 2 * tickMillis)
      last = time
      onTick(counted)
    }
  })

/** As `Effect.timeoutOption`, by this clock. */
export const withinRunningTime = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  duration: Duration.Input
): Effect.Effect<Option.Option<A>, E, R> => {
  const millis = Duration.toMillis(Duration.fromInputUnsafe(duration))
  const late = Effect.as(
    ticking(tickMillisOf(millis), () => undefined, millis),
    Option.none<A>()
  )
  return Effect.raceFirst(Effect.asSome(effect), late)
}

/** As `Effect.timeoutOrElse`, by this clock. */
export const orAfterRunningTime = <A, E, R, B, E2, R2>(
  effect: Effect.Effect<A, E, R>,
  { duration, orElse }: { readonly duration: Duration.Input; readonly orElse: () => Effect.Effect<B, E2, R2> }
): Effect.Effect<A | B, E | E2, R | R2> =>
  Effect.flatMap(
    withinRunningTime(effect, duration),
    (ended): Effect.Effect<A | B, E2, R2> => (Option.isSome(ended) ? Effect.succeed(ended.value) : orElse())
  )

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
