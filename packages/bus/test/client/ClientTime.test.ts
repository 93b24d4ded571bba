// SPDX-License-Identifier: Apache-2.0
/** By which time a client waits, and what it learns of an agent that ends while it does. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { all, register, twoAgents } from "../agent/twoAgents.ts"
import { faultOf, fill } from "../tensors.ts"

describe("deadlines of clients", () => {
  it.live("do not follow a step of the wall clock, forwards or backwards", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents({ deadline: "60 seconds" })
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        const live = yield* Clock.Clock
        for (const hours of [2, -2]) {
          let step = 0
          const stepped: Clock.Clock = Object.create(live, {
            currentTimeMillis: { value: Effect.sync(() => live.currentTimeMillisUnsafe() + step) },
            currentTimeMillisUnsafe: { value: () => live.currentTimeMillisUnsafe() + step }
          })
          const sending = yield* Effect.forkChild(
            Effect.provideService(a.client.transfer("w", "send"), Clock.Clock, stepped),
            { startImmediately: true }
          )
          while (!(yield* b.client.transferSignal("w"))) yield* Effect.yieldNow
          step = hours * 3_600_000
          // Long enough for the client to look at the time.
          yield* Effect.sleep("1200 millis")
          fill(x, [hours, 2, 3, 4])
          yield* b.client.transfer("w", "recv")
          yield* Fiber.join(sending)
          assert.isUndefined(faultOf(y, [hours, 2, 3, 4]))
        }
      })
    )
  )
})
