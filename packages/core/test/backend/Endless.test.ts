// SPDX-License-Identifier: Apache-2.0
/** Code of a backend that never ends, and does not let itself be interrupted, is named and left behind. */
import { assert, describe, it } from "@effect/vitest"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import { runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import type { BackendDescriptor } from "../../src/backend/BackendDescriptor.ts"
import { boundedLayer } from "../../src/backend/LazyLayer.ts"
import { probeBackend } from "../../src/backend/Probe.ts"
import { CopyDriver } from "../../src/service/CopyDriver.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"

const endless = Effect.uninterruptible(Effect.never)

/** What an effect gives when time passes, in steps that let fibers go on. */
const after = <A, E, R>(effect: Effect.Effect<A, E, R>, minutes: number) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
    for (let step = 0; step < 20; step++) yield* TestClock.adjust(Duration.times(Duration.minutes(minutes), 1 / 20))
    return yield* Fiber.join(fiber)
  })

describe("what never ends of a backend", () => {
  it.effect("is unavailable where it is a probe", () =>
    Effect.gen(function* () {
      const descriptor: BackendDescriptor = {
        name: "mute",
        apiVersion: 1,
        deviceFamilies: [],
        capabilities: {},
        options: Schema.Struct({}),
        probe: endless
      }
      const found = yield* after(probeBackend(descriptor), 1)
      assert.strictEqual(found._tag, "Unavailable")
      if (found._tag !== "Unavailable") return
      assert.include(found.cause, "did not end within 30 seconds")
      assert.include(found.remedy, "mute")
    })
  )

  it.effect("is unavailable where it is a layer", () =>
    Effect.gen(function* () {
      const layer = boundedLayer("mute", "copyDriver", Layer.effect(CopyDriver, endless))
      const { reason } = yield* Effect.flip(after(Effect.scoped(Layer.build(layer)), 6))
      assert.deepInclude(reason, { _tag: "Unavailable", backend: "mute", op: "copyDriver" })
    })
  )

  it.live(
    "does not keep a failed run from its end where it is cancel",
    () =>
      Effect.gen(function* () {
        const network = makeLoopbackNetwork()
        const driver = () =>
          Layer.effect(
            CopyDriver,
            Effect.map(CopyDriver, (inner) => ({
              ...inner,
              start: () =>
                Effect.succeed({
                  isComplete: Effect.succeed(false),
                  await: Effect.never,
                  cancel: endless,
                  movedBytes: Effect.succeed(0)
                })
            }))
          ).pipe(Layer.provide(loopbackLayer(network)))
        const exits = yield* runRanks({ size: 2, driver, groupDeadline: Duration.millis(500) }, (rank) =>
          Effect.gen(function* () {
            const service = yield* CopyService
            const tensor = yield* (yield* TensorEngine).allocate("uint8", [4])
            yield* rank === 0 ? service.submitSend(tensor, 1, 1) : service.submitRecv(tensor, 0, 1)
            return yield* service.run()
          })
        )
        for (const exit of exits) assert.isTrue(Exit.isFailure(exit))
      }),
    20_000
  )
})
