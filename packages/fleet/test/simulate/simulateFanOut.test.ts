// SPDX-License-Identifier: Apache-2.0
/** The simulator against times that are known, the planner's prediction, and the bound at 2,048 ranks. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Demand } from "../../src/fanout/Demand.ts"
import { planFanOut } from "../../src/fanout/FanOut.ts"
import { EventQueue } from "../../src/simulate/EventQueue.ts"
import { type SimulateOptions, simulateFanOut } from "../../src/simulate/simulateFanOut.ts"
import { indexTopology, uniformTopology } from "../../src/topology/Topology.ts"
import { fanOutCase } from "../fanout/support.ts"
import { aboveBound } from "./support.ts"

const run = (
  hosts: number,
  bundles: Demand["bundles"],
  options: SimulateOptions & { readonly chunkBytes?: number } = {}
) => {
  const alike = { hosts, ranksPerHost: 1, bytesPerSecond: 1e9, latencySeconds: 1e-3 }
  const topology = Result.getOrThrow(indexTopology(uniformTopology(alike)))
  const fanOut = Result.getOrThrow(planFanOut({ bundles }, topology, { chunkBytes: 1e6, children: 1, ...options }))
  return { ...simulateFanOut(fanOut, { bundles }, topology, options), bound: fanOut.bound.seconds }
}
const bundle = (holders: ReadonlyArray<number>, wanters: ReadonlyArray<number>, bytes = 1e9) => ({
  key: `from ${holders} to ${wanters}`,
  bytes,
  holders,
  wanters
})

describe("events", () => {
  it.effect.prop(
    "come by time, and in the order in which they were added at one time",
    { times: Schema.Array(Schema.Literals([0, 1, 2, 3, 5, 8, 13])).check(Schema.isMaxLength(60)) },
    ({ times }) =>
      Effect.sync(() => {
        const queue = new EventQueue<readonly [number, number]>()
        for (const [order, time] of times.entries()) queue.add(time, [time, order])
        const taken = times.map(() => {
          const next = queue.nextTime
          const found = queue.take()!
          assert.strictEqual(found[0], next)
          return found
        })
        const expected = times.map((time, order) => [time, order] as const).sort((a, b) => a[0] - b[0] || a[1] - b[1])
        assert.deepStrictEqual(taken, expected)
        assert.strictEqual(queue.take(), undefined)
        assert.strictEqual(queue.nextTime, Number.POSITIVE_INFINITY)
      })
  )
})

describe("a simulated update", () => {
  it("takes bytes by speed and a latency between two hosts", () => {
    assert.closeTo(run(2, [bundle([0], [1])]).seconds, 1.001, 1e-6)
    assert.closeTo(run(2, [bundle([0], [1], 1.5e6)]).seconds, 0.0025, 1e-6)
  })

  it("shares a link fairly between updates, in both places where they meet", () => {
    assert.closeTo(run(3, [bundle([0], [1]), bundle([0], [2])]).seconds, 2.001, 1e-3)
    assert.closeTo(run(3, [bundle([0], [2]), bundle([1], [2])]).seconds, 2.001, 1e-3)
  })

  it("does not slow one direction by the other", () => {
    assert.closeTo(run(2, [bundle([0], [1]), bundle([1], [0])]).seconds, 1.001, 1e-6)
  })

  it("fills a chain chunk by chunk", () => {
    // Eight stripes share each link, so each of nine hops takes eight turns of a chunk, and its latency.
    const { seconds } = run(11, [bundle([0], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])])
    assert.isAbove(seconds, 1.01)
    assert.isBelow(seconds, 1 + 10 * (8e-3 + 1e-3) + 0.01)
  })

  it.effect("never beats the bound, and comes near what the planner predicts", () =>
    Effect.gen(function* () {
      for (const { topology: stated, demand } of yield* Arbitrary.sampleEffect(fanOutCase, {
        count: 150,
        seed: "time"
      })) {
        const topology = Result.getOrThrow(indexTopology(stated))
        const fanOut = Result.getOrThrow(planFanOut(demand, topology))
        const { seconds, incomplete } = simulateFanOut(fanOut, demand, topology)
        assert.deepStrictEqual(incomplete, [])
        assert.isAtLeast(seconds, fanOut.bound.seconds * (1 - 1e-9), JSON.stringify({ stated, demand }))
      }
    })
  )

  it("of 2,048 ranks takes at most 1.2 times the least that links allow", () => {
    for (const { ratio, name } of aboveBound(256)) assert.isAtMost(ratio, 1.2, name)
  })
})

describe("a rank that dies in a simulated update", () => {
  const wanters = [1, 2, 3, 4, 5, 6, 7]
  it("leaves the others complete where it is a relay, later by about the time until it is noticed", () => {
    const calm = run(8, [bundle([0], wanters)]).seconds
    for (const rank of wanters) {
      const { seconds, incomplete } = run(8, [bundle([0], wanters)], {
        deaths: [{ rank, at: 0.4 }],
        noticeSeconds: 0.5
      })
      assert.deepStrictEqual(incomplete, [])
      assert.isBelow(seconds, calm + 0.5 + 0.5)
    }
  })

  it("leaves the others complete where it is a source with a replica", () => {
    const { incomplete } = run(9, [bundle([0, 8], wanters)], { deaths: [{ rank: 0, at: 0.3 }] })
    assert.deepStrictEqual(incomplete, [])
  })

  it("leaves those incomplete, by name, who had not got everything from the only source", () => {
    const { incomplete } = run(8, [bundle([0], wanters)], { deaths: [{ rank: 0, at: 0.3 }] })
    assert.deepStrictEqual(incomplete, wanters)
    assert.deepStrictEqual(run(8, [bundle([0], wanters)], { deaths: [{ rank: 0, at: 5 }] }).incomplete, [])
  })

  it("changes nothing for an update that does not pass by it", () => {
    const bundles = [bundle([0], [1]), bundle([2], [3])]
    assert.deepInclude(run(4, bundles, { deaths: [{ rank: 3, at: 0.1 }] }), {
      incomplete: [],
      seconds: run(4, [bundles[0]!]).seconds
    })
  })
})
