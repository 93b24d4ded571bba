// SPDX-License-Identifier: Apache-2.0
/**
 * Deadlines follow a monotonic clock and count only time in which this process ran: neither a jump of the time of day nor
 * a stop of the whole process is anybody's fault.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as TestClock from "effect/testing/TestClock"
import { makeDriverCalls } from "../../src/copy/internal/transfer.ts"
import { makeSingle } from "../../src/group/ProcessGroupInProcess.ts"
import type { CopyDriverShape } from "../../src/service/CopyDriver.ts"
import { orAfterRunningTime, withinRunningTime } from "../../src/service/RunningTime.ts"

const hour = 3_600_000_000_000n

/** The machine's clock, whose time of day or monotonic time jumps by an hour at the second look. */
const jumping = (which: "day" | "monotonic") =>
  Effect.map(Clock.Clock, (real) => {
    const jumped = (read: Effect.Effect<bigint>, isJumping: boolean) => {
      let looks = 0
      return Effect.map(read, (nanos) => (isJumping && ++looks > 1 ? nanos + hour : nanos))
    }
    const day = jumped(real.currentTimeNanos, which === "day")
    return Clock.Clock.of({
      currentTimeMillisUnsafe: () => real.currentTimeMillisUnsafe(),
      currentTimeMillis: Effect.map(day, (nanos) => Number(nanos / 1_000_000n)),
      currentTimeNanosUnsafe: () => real.currentTimeNanosUnsafe(),
      currentTimeNanos: day,
      monotonicTimeNanosUnsafe: () => real.monotonicTimeNanosUnsafe(),
      monotonicTimeNanos: jumped(real.monotonicTimeNanos, which === "monotonic"),
      sleep: (duration) => real.sleep(duration)
    })
  })

describe("running time", () => {
  it.effect("ends a wait at its deadline, and not before", () =>
    Effect.gen(function* () {
      const fiber = yield* Effect.forkChild(
        orAfterRunningTime(Effect.never, { duration: "70 seconds", orElse: () => Effect.succeed("late") }),
        { startImmediately: true }
      )
      yield* TestClock.adjust("69999 millis")
      assert.isUndefined(fiber.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      assert.strictEqual(yield* Fiber.join(fiber), "late")
    })
  )

  it.live("does not count a stop of the process", () =>
    Effect.gen(function* () {
      const event = yield* Deferred.make<string>()
      yield* Effect.forkChild(Effect.delay(Deferred.succeed(event, "came"), "500 millis"))
      const clock = yield* jumping("monotonic")
      const ended = yield* Effect.provideService(
        withinRunningTime(Deferred.await(event), "20 seconds"),
        Clock.Clock,
        clock
      )
      assert.deepStrictEqual(ended, Option.some("came"))
    })
  )

  for (const which of ["day", "monotonic"] as const) {
    it.live(
      `lets a transfer go on over a jump of the ${which === "day" ? "time of day" : "time while it was stopped"}`,
      () =>
        Effect.gen(function* () {
          const program = { messages: [] } as unknown as Parameters<CopyDriverShape["start"]>[0]
          const driver = {
            name: "slow",
            start: () =>
              Effect.succeed({
                isComplete: Effect.succeed(false),
                await: Effect.sleep("1 second"),
                cancel: Effect.void,
                movedBytes: Effect.succeed(0)
              })
          } as unknown as CopyDriverShape
          const group = yield* makeSingle()
          const calls = makeDriverCalls("slow", group, Duration.seconds(30))
          const round = { program, pack: [], unpack: [], receivedBytes: 0 }
          const moved = calls.transfer(driver, round, () => Effect.void)
          assert.deepStrictEqual(yield* Effect.provideService(moved, Clock.Clock, yield* jumping(which)), [])
        })
    )
  }
})
