// SPDX-License-Identifier: Apache-2.0
/** Limits of sending, by a clock that the test moves: no second carries more, little is left unused, the urgent go first. */
import { assert, describe, it } from "@effect/vitest"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import { makeSendLimit } from "../../src/edges/SendLimit.ts"

interface Sent {
  readonly at: number
  readonly bytes: number
  readonly who: string
}

describe("a limit of sending", () => {
  it.effect("is kept in every second, also after a pause, and leaves less than a tenth unused", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const rate = 1_000_003
        const limit = yield* makeSendLimit(rate)
        const sent: Array<Sent> = []
        const sender = (who: string, bytes: number, count: number) =>
          Effect.forkChild(
            Effect.repeat(
              Effect.gen(function* () {
                yield* limit.take(bytes, 0)
                sent.push({ at: yield* monotonicMillis, bytes, who })
              }),
              { times: count - 1 }
            ),
            { startImmediately: true }
          )
        const first = [
          yield* sender("large", limit.mostAtOnce, 60),
          yield* sender("odd", 7001, 200),
          yield* sender("small", 64, 500)
        ]
        yield* TestClock.adjust("10 seconds")
        yield* Effect.forEach(first, Fiber.join)
        yield* TestClock.adjust("5 seconds")
        const again = yield* sender("again", limit.mostAtOnce, 40)
        yield* TestClock.adjust("10 seconds")
        yield* Fiber.join(again)
        assert.strictEqual(sent.length, 60 + 200 + 500 + 40)
        const most = sent.map(({ at }) =>
          sent.filter((other) => other.at >= at && other.at < at + 1000).reduce((sum, { bytes }) => sum + bytes, 0)
        )
        assert.isAtMost(Math.max(...most), rate)
        assert.isAbove(Math.max(...most), 0.9 * rate)
        const later = sent.filter(({ who }) => who === "again")
        const seconds = (later.at(-1)!.at - later[0]!.at) / 1000
        assert.isAbove((later.length - 1) * limit.mostAtOnce, 0.9 * rate * seconds)
      })
    )
  )

  it.effect("lets the urgent go first, and passes over who does not wait any more", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const limit = yield* makeSendLimit(20_000)
        const order: Array<string> = []
        const take = (who: string, urgency: number) =>
          Effect.forkChild(
            Effect.andThen(
              limit.take(1000, urgency),
              Effect.sync(() => order.push(who))
            ),
            { startImmediately: true }
          )
        yield* take("first", 1)
        yield* TestClock.adjust("1 millis")
        for (const [who, urgency] of [
          ["late", 2],
          ["plain", 1],
          ["gone", 0],
          ["urgent", 0],
          ["plain too", 1]
        ] as const) {
          const fiber = yield* take(who, urgency)
          if (who === "gone") yield* Fiber.interrupt(fiber)
        }
        yield* TestClock.adjust("10 seconds")
        assert.deepStrictEqual(order, ["first", "urgent", "plain", "plain too", "late"])
      })
    )
  )
})
