// SPDX-License-Identifier: Apache-2.0
/**
 * A rank that gives up a run ends the wait of the others at once, over a driver that tells nobody anything: its transfers
 * never end by themselves. The group's deadline is longer than the test.
 */
import { assert, describe, it } from "@effect/vitest"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import { CopyDriver, copyDriverError, type InFlight } from "../../src/service/CopyDriver.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { TensorEngine, tensorError } from "../../src/service/TensorEngine.ts"

const failure = copyDriverError("TransportFailed", { detail: "The disk is full.", remedy: "None." })

/** How rank 1 gives up its first run. */
type Way = "is interrupted" | "fails in its transfer" | "fails while it packs"

const givesUp = (way: Way) =>
  Effect.gen(function* () {
    const network = makeLoopbackNetwork()
    const started = yield* Deferred.make<void>()
    const builds = [0, 0, 0]
    /** Drivers of the first build are mute; those that are built after them move bytes. */
    const driver = (rank: number) =>
      Layer.effect(
        CopyDriver,
        Effect.map(CopyDriver, (inner) => {
          const isFirst = builds[rank]!++ === 0
          const mute: InFlight = {
            isComplete: Effect.succeed(false),
            await: rank === 1 && way === "fails in its transfer" ? Effect.fail(failure) : Effect.never,
            cancel: Effect.void,
            movedBytes: Effect.succeed(0)
          }
          const start = Effect.as(rank === 1 ? Deferred.succeed(started, undefined) : Effect.void, mute)
          return isFirst ? { ...inner, start: () => start } : inner
        })
      ).pipe(Layer.provide(loopbackLayer(network, { gather: false })))
    let packs = 0
    const engine = Layer.sync(TensorEngine, () => {
      const reference = ReferenceEngine.make()
      const broken = tensorError("DeviceFailure", { op: "copy", detail: "The kernel failed.", remedy: "None." })
      return TensorEngine.of({
        ...reference,
        copy: (moves) =>
          Effect.suspend(() => {
            const isPack = way === "fails while it packs" && moves.some(({ src }) => src.strides[0] === 2)
            return isPack && packs++ === 0 ? Effect.fail(broken) : reference.copy(moves)
          })
      })
    })
    return yield* runCluster({ size: 3, driver, engine, groupDeadline: Duration.minutes(5) }, (rank) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const { allocate } = yield* TensorEngine
        const [whole, into] = [yield* allocate("uint8", [8]), yield* allocate("uint8", [4])]
        const attempt = Effect.gen(function* () {
          // Rank 1 sends every second byte, which is packed.
          if (rank === 1) yield* service.submitSend({ ...whole, shape: [4], strides: [2] }, 0, 1)
          if (rank === 0) yield* service.submitRecv(into, 1, 1)
          return yield* service.run()
        })
        const run = yield* Effect.forkChild(attempt, { startImmediately: true })
        if (rank === 1 && way === "is interrupted") {
          yield* Deferred.await(started)
          yield* Fiber.interrupt(run)
          yield* attempt
          return undefined
        }
        const error = yield* Effect.flip(Fiber.join(run))
        yield* attempt
        return error
      })
    )
  })

describe("a rank that gives up a run ends it for ranks whose driver waits", () => {
  it.live.each([
    ["is interrupted", "Rank 1 was interrupted"],
    ["fails in its transfer", "The disk is full."],
    ["fails while it packs", "The kernel failed."]
  ] as const)(
    "where it %s",
    ([way, reason]) =>
      Effect.gen(function* () {
        const errors = yield* givesUp(way)
        for (const error of [errors[0], errors[2]]) {
          assert.include(error?.message, reason)
          assert.deepStrictEqual(error?.ranks, [1])
        }
      }),
    20_000
  )
})
