// SPDX-License-Identifier: Apache-2.0
/**
 * Rings by the kernel of this package against all cases of the kit, over the simulated driver: every case with another order
 * of work, in which copies come in pieces and streams pass each other wherever no event forbids it. Rings whose events are
 * missing are found by some order.
 */
import { assert, describe, it } from "@effect/vitest"
import { type OpenRing, TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { makeEngine } from "@tensorferry/simulators/gpuEngine"
import { ringConformanceCases, runRingCase } from "@tensorferry/testing/ring/RingConformance"
import { RingSubject } from "@tensorferry/testing/ring/RingSubject"
import { ringLies } from "@tensorferry/testing/ring/ringLies"
import { deviceRingSubject, meddled } from "@tensorferry/testing/ring/ringSubjects"
import { isSoak } from "@tensorferry/testing/testLevel"
import { describeReplayRing } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { afterEach, beforeEach } from "vitest"

/** Orders of the driver in which an honest ring is tried, and in which a lie is to be found. */
const orders = isSoak ? 1000 : 3
const ordersOfLie = 60

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

const subjectWith = (meddle: (ring: OpenRing) => OpenRing) =>
  Layer.effect(
    RingSubject,
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      return yield* Effect.provideService(deviceRingSubject, TensorEngine, meddled(engine, meddle))
    })
  )

describeReplayRing(
  "the simulated GPU",
  subjectWith((ring) => ring),
  { timeout: 120_000 }
)

/** The cases in which rows travel beside draws. */
const orderCases = ringConformanceCases.filter(({ name }) => /same tick/.test(name))

const failuresOf = (meddle: (ring: OpenRing) => OpenRing) =>
  Effect.gen(function* () {
    const results = yield* Effect.forEach(orderCases, (oneCase) => runRingCase(oneCase))
    return results.filter(({ status }) => status === "failed")
  }).pipe(Effect.provide(subjectWith(meddle), { local: true }), Effect.orDie)

describe("a ring on the simulated GPU", () => {
  it.live(
    `keeps its word in ${orders} orders`,
    () =>
      Effect.gen(function* () {
        assert.strictEqual(orderCases.length, 2)
        for (let order = 1; order <= orders; order++) {
          resetSimulator(`seed=${1000 + order}`)
          assert.deepStrictEqual(yield* failuresOf((ring) => ring), [], `seed ${1000 + order}`)
          assertClean(`seed ${1000 + order}`)
        }
      }),
    isSoak ? 7_200_000 : 120_000
  )

  for (const { name, tell } of ringLies.filter(({ isOfOrder }) => isOfOrder)) {
    it.live(
      `is found where it ${name}`,
      () =>
        Effect.gen(function* () {
          for (let order = 1; order <= ordersOfLie; order++) {
            resetSimulator(`seed=${order}`)
            if ((yield* failuresOf(tell)).length > 0) return
          }
          assert.fail(`The cases find nothing in ${ordersOfLie} orders.`)
        }),
      300_000
    )
  }
})
