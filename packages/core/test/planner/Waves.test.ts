// SPDX-License-Identifier: Apache-2.0
/** What travels when: both ends find the same waves, and none has more in buffers than it may. */
import { assert, describe, it } from "@effect/vitest"
import { meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import { isReducible } from "@tensorferry/testing/planning/meshLaws"
import { compact, pairSpecs, plansOf, specsOf } from "@tensorferry/testing/planning/meshSides"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import { formatRegion } from "../../src/base/Region.ts"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { meshOps } from "../../src/planner/MeshOps.ts"
import { checkPlans } from "../../src/planner/PlanCheck.ts"
import { isContribution, type Leg, legBytes, wavesOf } from "../../src/planner/Waves.ts"

const nameOf = ({ op, part, within }: Leg): string =>
  `${op.taskId} ${part} ${within === undefined ? "" : formatRegion(within)} ${op.wireDtype}`

/** By sender, receiver and wave, what one end lists. */
const listed = (plans: ReadonlyArray<ReshardPlan>, waveBytes: number, side: "sends" | "recvs") => {
  const lists = new Map<string, ReadonlyArray<string>>()
  for (const plan of plans) {
    for (const [at, wave] of wavesOf(plan, waveBytes).waves.entries()) {
      for (const [peer, legs] of Map.groupBy(wave[side], ({ op }) => op.peerRank)) {
        const [from, to] = side === "sends" ? [plan.rank, peer] : [peer, plan.rank]
        lists.set(`${from} to ${to}, wave ${at}`, legs.map(nameOf).sort())
      }
    }
  }
  return lists
}

describe("waves of generated plans", () => {
  for (const isPartial of [false, true]) {
    it.effect(`are the same at both ends, ${isPartial ? "contributions" : "whole values"}`, () =>
      Effect.gen(function* () {
        const sampled = yield* Arbitrary.sampleEffect(meshPair({ isPartial }), { count: 100, seed: 7 })
        let several = 0
        for (const pair of sampled.map(compact).filter(isReducible)) {
          const plans = plansOf(pairSpecs(pair, "balanced")).map(meshOps)
          assert.deepStrictEqual(checkPlans(plans), [])
          for (const waveBytes of [24, 100, 2 ** 20]) {
            assert.deepStrictEqual(listed(plans, waveBytes, "recvs"), listed(plans, waveBytes, "sends"))
            for (const plan of plans) {
              const { waves, reductions } = wavesOf(plan, waveBytes)
              if (waves.length > 1) several += 1
              // Everything once, contributions first.
              const legs = waves.flatMap(({ sends, recvs }) => [...sends, ...recvs])
              assert.strictEqual(new Set(legs.map(({ op }) => op)).size, plan.sendOps.length + plan.recvOps.length)
              for (const [at, { sends, recvs }] of waves.entries()) {
                for (const { op } of [...sends, ...recvs]) assert.strictEqual(isContribution(plan, op), at < reductions)
              }
              // All parts of a reduction's piece come in one wave.
              const places = new Map<string, Set<number>>()
              for (const [at, { recvs }] of waves.slice(0, reductions).entries()) {
                for (const { op, part } of recvs) {
                  const key = `${op.reduction} ${part}`
                  places.set(key, (places.get(key) ?? new Set()).add(at))
                }
              }
              for (const found of places.values()) assert.strictEqual(found.size, 1)
            }
          }
        }
        assert.isAbove(several, 20)
      })
    )
  }
})

describe("what waits in buffers", () => {
  it("is at most so many bytes from one rank to another in a wave, and what does not wait travels at once", () => {
    const specs = [
      ...specsOf("2:S0", "2@2:R", [{ shape: [64, 8], from: "float32", to: "bfloat16" }]),
      { ...specsOf("2:S0", "2@2:R", [{ shape: [64, 8] }])[0]!, name: "plain" }
    ]
    const plans = plansOf(specs).map(meshOps)
    for (const plan of plans) {
      const { waves } = wavesOf(plan, 128)
      for (const [at, { sends, recvs }] of waves.entries()) {
        for (const legs of [...Map.groupBy([...sends, ...recvs], ({ op }) => op.peerRank).values()]) {
          const waiting = legs.filter(({ op }) => op.paramName !== "plain")
          assert.isAtMost(
            waiting.reduce((sum, leg) => sum + legBytes(leg), 0),
            128
          )
          if (at > 0) assert.strictEqual(waiting.length, legs.length)
        }
      }
      assert.strictEqual(waves.length, (32 * 8 * 2) / 128)
    }
  })

  it("is not cut by plans of version 1, whose ends do not know each other's types", () => {
    const [plan] = plansOf(specsOf("2:S0", "2@2:R", [{ shape: [64, 8], from: "float32", to: "bfloat16" }])).map(meshOps)
    assert.strictEqual(wavesOf({ ...plan!, version: 1 }, 128).waves.length, 1)
  })
})
