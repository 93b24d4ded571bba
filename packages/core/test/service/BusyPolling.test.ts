// SPDX-License-Identifier: Apache-2.0
/** A run keeps its thread awake while it lasts, no longer than it was asked to, and leaves nothing behind. */
import { assert, describe, it, vi } from "@effect/vitest"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { busyPoll, defaultBusyPollMillis } from "../../src/service/BusyPolling.ts"
import { CopyService } from "../../src/service/CopyService.ts"

/** A few turns of the event loop. */
const turns = Effect.callback<void>((resume) => {
  const turn = (left: number): void => {
    setImmediate(() => (left === 0 ? resume(Effect.void) : turn(left - 1)))
  }
  turn(3)
})

/** Whether a look is planned in these turns. Other files of the process have turns of their own. */
const isPolling = Effect.acquireUseRelease(
  Effect.sync(() => vi.spyOn(globalThis, "setImmediate")),
  (planned) => Effect.map(turns, () => planned.mock.calls.some(([callback]) => callback.name === "look")),
  (planned) => Effect.sync(() => planned.mockRestore())
)

/** Whether rank 0 polls while it waits for rank 1, and afterwards. */
const pollsDuring = (busyPoll: Duration.Duration) =>
  Effect.gen(function* () {
    const gate = yield* Deferred.make<void>()
    let during: boolean | undefined
    yield* runCluster({ size: 2, busyPoll }, (rank) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        if (rank === 1) {
          yield* Deferred.await(gate)
          return yield* service.run()
        }
        const running = yield* Effect.forkChild(service.run(), { startImmediately: true })
        during = yield* isPolling
        yield* Deferred.succeed(gate, undefined)
        return yield* Fiber.join(running)
      })
    )
    return { during, afterwards: yield* isPolling }
  })

describe("busy polling", () => {
  it.live("keeps the thread awake from the start of a run to its end", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* pollsDuring(Duration.seconds(30)), { during: true, afterwards: false })
    })
  )

  it.live("does nothing where it is switched off", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* pollsDuring(Duration.zero), { during: false, afterwards: false })
    })
  )

  it.live("ends with a run that is interrupted", () =>
    Effect.gen(function* () {
      const gate = yield* Deferred.make<void>()
      let polled: boolean | undefined
      yield* runCluster({ size: 2, busyPoll: Duration.seconds(30) }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          if (rank === 1) {
            // All ranks of this test share a thread: this one must not poll yet.
            yield* Deferred.await(gate)
            yield* Effect.ignore(service.run())
            return yield* service.run()
          }
          const running = yield* Effect.forkChild(service.run(), { startImmediately: true })
          yield* Fiber.interrupt(running)
          polled = yield* isPolling
          yield* Deferred.succeed(gate, undefined)
          return yield* service.run()
        })
      )
      assert.isFalse(polled)
    })
  )

  it.live("ends by itself when its time is over", () =>
    Effect.gen(function* () {
      const begun = performance.now()
      const stop = busyPoll(20)
      let looks = 0
      while (yield* isPolling) looks += 1
      assert.isAbove(looks, 0)
      assert.isAtLeast(performance.now() - begun, 20)
      stop()
    })
  )

  it.live("ends where a look ends it", () =>
    Effect.gen(function* () {
      let looks = 0
      const stop = busyPoll(30_000, () => {
        looks += 1
        if (looks === 2) stop()
      })
      while (looks < 2) yield* turns
      yield* turns
      assert.strictEqual(looks, 2)
      assert.isFalse(yield* isPolling)
    })
  )

  it("takes no core that a rank needs", () => {
    assert.strictEqual(defaultBusyPollMillis(2, 1), 0)
    assert.strictEqual(defaultBusyPollMillis(31, 8), 0)
    assert.isAbove(defaultBusyPollMillis(32, 8), 0)
    assert.isAbove(defaultBusyPollMillis(32, 2), 0)
  })
})
