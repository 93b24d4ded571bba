// SPDX-License-Identifier: Apache-2.0
/**
 * Orders of the device: rings keep their word under every order that their events allow, and the cases of the kit find rings
 * that do not.
 */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import type { OpenRing } from "@tensorferry/core/service/TensorEngine"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { allowedOrder, inAllowedOrders } from "@tensorferry/testing/ring/adversary"
import { ringConformanceCases, runRingCase } from "@tensorferry/testing/ring/RingConformance"
import { RingSubject } from "@tensorferry/testing/ring/RingSubject"
import { ringLies } from "@tensorferry/testing/ring/ringLies"
import { deviceRingSubject, meddled } from "@tensorferry/testing/ring/ringSubjects"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

/** Orders in which an honest ring is tried, and in which a lie is to be found. */
const orders = isSoak ? 1000 : 12
const ordersOfLie = 24

const subjectWith = (meddle: (ring: OpenRing) => OpenRing) =>
  Layer.provide(
    Layer.effect(
      RingSubject,
      Effect.gen(function* () {
        const engine = meddled(yield* TensorEngine, meddle)
        return yield* Effect.provideService(deviceRingSubject, TensorEngine, engine)
      })
    ),
    HostEngine.layer()
  )

/** Cases in which rows arrive beside draws. */
const orderCases = ringConformanceCases.filter(({ name }) => /while|no longer/.test(name))

const failuresOf = (meddle: (ring: OpenRing) => OpenRing, cases = ringConformanceCases) =>
  Effect.gen(function* () {
    const results = yield* Effect.forEach(cases, (oneCase) => runRingCase(oneCase, "20 seconds"))
    return results.filter(({ status }) => status === "failed")
  }).pipe(Effect.provide(subjectWith(meddle), { local: true }))

describe("an order of the device", () => {
  it("keeps the order of each stream, and waits where an event says so", () => {
    const steps = [
      { _tag: "Reserve", stream: 0, at: 0, rows: 1 },
      { _tag: "Record", stream: 0, event: 0 },
      { _tag: "Wait", stream: 1, event: 0 },
      { _tag: "Reserve", stream: 1, at: 1, rows: 1 },
      { _tag: "Reserve", stream: 0, at: 2, rows: 1 }
    ] as const
    const seen = new Set<string>()
    for (let seed = 0; seed < 200; seed++) {
      const order = allowedOrder(steps, seed)
      assert.sameMembers([...order], [...steps])
      seen.add(order.map((step) => steps.indexOf(step as never)).join(""))
    }
    // Step 4 may come anywhere behind 1; everything else is fixed.
    assert.deepStrictEqual([...seen].sort(), ["01234", "01243", "01423"])
  })
})

describe("a ring on a device", () => {
  it.live(
    `keeps its word in ${orders} orders`,
    () =>
      Effect.gen(function* () {
        assert.isAbove(orderCases.length, 2)
        for (let seed = 1; seed <= orders; seed++) {
          assert.deepStrictEqual(
            yield* failuresOf((ring) => inAllowedOrders(ring, seed), orderCases),
            [],
            `seed ${seed}`
          )
        }
      }),
    isSoak ? 3_600_000 : 120_000
  )

  for (const { isOfOrder, name, tell } of ringLies) {
    it.live(
      `is found where it ${name}`,
      () =>
        Effect.gen(function* () {
          if (!isOfOrder) return assert.isNotEmpty(yield* failuresOf(tell))
          for (let seed = 1; seed <= ordersOfLie; seed++) {
            const found = yield* failuresOf((ring) => tell(inAllowedOrders(ring, seed)), orderCases)
            if (found.length > 0) return
          }
          assert.fail(`The cases find nothing in ${ordersOfLie} orders.`)
        }),
      120_000
    )
  }
})
