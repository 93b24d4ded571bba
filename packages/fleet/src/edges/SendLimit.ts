// SPDX-License-Identifier: Apache-2.0
/**
 * Lets a process send no more than so many bytes in any second, over all of its edges together. A bucket holds a twentieth of
 * what a second may carry, and is filled at the speed of the rest; what is in it at the start of any second and what is filled
 * in during it are never more than the limit.
 *
 * Whoever is more urgent is served first, and among equals who came first.
 */
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"

/** Parts of a second's bytes that may go at once. */
const partsOfSecond = 20

interface Waiting {
  readonly bytes: number
  readonly urgency: number
  readonly number: number
  readonly served: Deferred.Deferred<void>
}

const isBefore = (a: Waiting, b: Waiting): boolean =>
  a.urgency === b.urgency ? a.number < b.number : a.urgency < b.urgency

/** Serves those who wait until the scope closes. */
export const makeSendLimit = Effect.fnUntraced(function* (bytesPerSecond: number) {
  const mostAtOnce = Math.max(1, Math.floor(bytesPerSecond / partsOfSecond))
  const filledPerMilli = (bytesPerSecond - mostAtOnce) / 1000
  const waiting = new Set<Waiting>()
  const due = yield* Queue.sliding<void>(1)
  let [level, filledAt, arrivals] = [mostAtOnce, yield* monotonicMillis, 0]

  const serve = Effect.gen(function* () {
    yield* Queue.take(due)
    while (waiting.size > 0) {
      const now = yield* monotonicMillis
      level = Math.min(mostAtOnce, level + (now - filledAt) * filledPerMilli)
      filledAt = now
      const [first, ...others] = waiting
      const next = others.reduce((best, other) => (isBefore(other, best) ? other : best), first!)
      if (level < next.bytes) {
        // A timer may come early by a part of a millisecond.
        yield* Effect.sleep(Duration.millis(Math.max(1, Math.ceil((next.bytes - level) / filledPerMilli))))
        continue
      }
      level -= next.bytes
      waiting.delete(next)
      yield* Deferred.succeed(next.served, undefined)
    }
  })
  yield* Effect.forkScoped(Effect.forever(serve))

  return {
    /** What may go at once; nobody may ask for more. */
    mostAtOnce,
    /** Ends when so many bytes may be sent. Lower numbers of `urgency` go first. */
    take: (bytes: number, urgency: number): Effect.Effect<void> =>
      Effect.suspend(() => {
        const entry: Waiting = {
          bytes: Math.min(bytes, mostAtOnce),
          urgency,
          number: arrivals++,
          served: Deferred.makeUnsafe<void>()
        }
        waiting.add(entry)
        Queue.offerUnsafe(due, undefined)
        return Effect.onInterrupt(Deferred.await(entry.served), () => Effect.sync(() => waiting.delete(entry)))
      })
  }
})

/** What limits the sending of a process. */
export type SendLimit = Effect.Success<ReturnType<typeof makeSendLimit>>
