// SPDX-License-Identifier: Apache-2.0
/** Waits that are seen: who waits long says so, for whom and until when, in a log and in a span. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { ticking } from "./RunningTime.ts"
import { inSpan } from "./Spans.ts"

/** Whoever waits for less says nothing. */
const firstMillis = 3000

/** Milliseconds in words of a whole number of seconds. */
export const inSeconds = (millis: number): string => `${Math.max(0, Math.round(millis / 1000))} s`

/** Words for a wait that ends by itself: `; this fails in 57 s`. */
export const untilWords = (limit: Duration.Input, waitedMillis: number): string =>
  `; this fails in ${inSeconds(Duration.toMillis(Duration.fromInputUnsafe(limit)) - waitedMillis)}`

/**
 * Runs an effect that waits for others, as a span `wait`. After three seconds it logs `text`, which gets the milliseconds so
 * far, at level Info; then each time that three times as long has passed.
 */
export const sayWaiting = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  text: (waitedMillis: number) => string
): Effect.Effect<A, E, R> => {
  const reminder = Effect.gen(function* () {
    const context = yield* Effect.context<never>()
    let next = firstMillis
    yield* ticking(1000, (now) => {
      if (now < next) return
      next = 3 * now
      Effect.runForkWith(context)(Effect.logInfo(text(now)))
    })
  })
  return Effect.acquireUseRelease(
    Effect.forkChild(reminder),
    () => inSpan(effect, "wait", () => ({ for: text(0) })),
    (fiber) => Fiber.interrupt(fiber)
  )
}
