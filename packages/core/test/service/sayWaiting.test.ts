// SPDX-License-Identifier: Apache-2.0
/** Waits that are seen: what is logged when, and the span. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import { TestClock } from "effect/testing"
import { inSeconds, sayWaiting, untilWords } from "../../src/service/sayWaiting.ts"
import { makeTrace, traced } from "../../src/trace/TraceFile.ts"

const text = (millis: number) => `Waited ${inSeconds(millis)} for rank 3${untilWords("60 seconds", millis)}.`

/** Waits so many seconds; what was logged by then. */
const saidAfter = (seconds: number) =>
  Effect.gen(function* () {
    const said: Array<string> = []
    const logger = Logger.make(({ logLevel, message }) => void said.push(`${logLevel} ${String(message)}`))
    const done = yield* Deferred.make<string>()
    const waiting = yield* Effect.forkChild(
      Effect.provide(sayWaiting(Deferred.await(done), text), Logger.layer([logger]))
    )
    yield* Effect.yieldNow
    // The reminder sleeps a second at a time.
    for (let second = 0; second < seconds; second++) yield* TestClock.adjust("1 second")
    yield* Deferred.succeed(done, "done")
    assert.strictEqual(yield* Fiber.join(waiting), "done")
    yield* TestClock.adjust("5 minutes")
    return said
  })

describe("a wait", () => {
  it.effect("of less than three seconds says nothing", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* saidAfter(2), [])
    })
  )

  it.effect(
    "says for whom and until when after three seconds, then ever more rarely, and nothing once it has ended",
    () =>
      Effect.gen(function* () {
        assert.deepStrictEqual(yield* saidAfter(30), [
          "Info Waited 3 s for rank 3; this fails in 57 s.",
          "Info Waited 9 s for rank 3; this fails in 51 s.",
          "Info Waited 27 s for rank 3; this fails in 33 s."
        ])
      })
  )

  it.effect("is a span that names for whom", () =>
    Effect.gen(function* () {
      const trace = makeTrace({ processName: "test" })
      yield* sayWaiting(Effect.void, () => "rank 3").pipe(traced(trace))
      const [event] = trace.document().traceEvents.filter(({ ph }) => ph === "X")
      assert.deepStrictEqual([event!.name, event!.args], ["wait", { for: "rank 3" }])
    })
  )

  it.effect("passes on how the effect failed", () =>
    Effect.gen(function* () {
      assert.strictEqual(yield* Effect.flip(sayWaiting(Effect.fail("gone"), text)), "gone")
    })
  )
})
