// SPDX-License-Identifier: Apache-2.0
/** Plans of all ranks are refused where a transfer ends in a tensor other than the one that it left. */
import { assert, describe, it } from "@effect/vitest"
import { modelLayout } from "@tensorferry/model/layout/ModelLayout"
import * as Result from "effect/Result"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { checkPlans } from "../../src/planner/PlanCheck.ts"
import { indexRosters, planRank } from "../../src/planner/RosterPlanner.ts"
import { plansOf, rosterOf } from "../reshard/executeSupport.ts"

/** Two matrices of one shape, cut by two ranks and then whole on one. */
const smallPlans = (): ReadonlyArray<ReshardPlan> => {
  const tensors = ["q", "k"].map((name) => ({ name, dtype: "bfloat16" as const, shape: [4, 4] }))
  const layout = (tp: number) =>
    Result.getOrThrow(
      modelLayout({ tensors, rules: { rules: [{ match: "*", shard: 0 }] }, config: { tp, pp: 1, dp: 1, ep: 1 } })
    )
  const index = Result.getOrThrow(indexRosters(layout(2).roster, layout(1).roster))
  return [0, 1].map((rank) => planRank(index, rank))
}

/** Two entries of a list exchange the values of a field. */
const exchanged = <A extends object, K extends keyof A>(list: ReadonlyArray<A>, field: K): ReadonlyArray<A> =>
  list.map((each, at) => ({ ...each, [field]: list[list.length - 1 - at]![field] }))

describe("the check of all plans", () => {
  it("proves the plans that the planner made", () => {
    assert.deepStrictEqual(checkPlans(smallPlans()), [])
  })

  it("refuses two sends of equal shape that exchanged their tensors", () => {
    const [own, other] = smallPlans()
    const changed = { ...other!, sendOps: exchanged(other!.sendOps, "paramName") }
    const faults = checkPlans([own!, changed])
    assert.isNotEmpty(faults)
    assert.match(faults[0]!.message, /sends k into q|sends q into k/)
  })

  it("refuses tensors that exchanged their global names", () => {
    const [own, other] = smallPlans()
    const changed = { ...other!, sourceTensors: exchanged(other!.sourceTensors, "resolvedName") }
    assert.isNotEmpty(checkPlans([own!, changed]))
  })
})

describe("places", () => {
  const tensors = [{ name: "a.up.weight", dtype: "float32", shape: [8, 6] }] as const
  const rules = { rules: [{ match: "*", shard: 0 }] } as const
  const plans = plansOf(rosterOf(2, { tensors, rules }), rosterOf(1, { tensors, rules, firstRank: 2 }), 3)

  it("that both ends exchanged are found, though shapes, names and coverage are right", () => {
    assert.deepStrictEqual(checkPlans(plans), [])
    const into = new Map(plans[2]!.recvOps.map(({ peerRank, mySlice }) => [1 - peerRank, mySlice]))
    const exchanged = plans.map((plan) => ({
      ...plan,
      sendOps: plan.sendOps.map((op) => ({ ...op, peerSlice: into.get(plan.rank)! })),
      recvOps: plan.recvOps.map((op) => ({ ...op, mySlice: into.get(op.peerRank)! }))
    }))
    const found = checkPlans(exchanged)
    assert.lengthOf(found, 2)
    for (const fault of found) assert.include(fault.message, "to another place of the tensor")
    // Plans of version 1 do not say where their tensors lie.
    const unplaced = exchanged.map((plan) => {
      const without = (list: typeof plan.sourceTensors) => list.map(({ place: _, ...tensor }) => tensor)
      return {
        ...plan,
        version: 1 as const,
        sourceTensors: without(plan.sourceTensors),
        destinationTensors: without(plan.destinationTensors)
      }
    })
    assert.deepStrictEqual(checkPlans(unplaced), [])
  })

  it("that do not fit the tensor are a fault, not a failure of the check", () => {
    for (const place of [
      { dim: 0, intervals: [], blocks: 0 },
      { dim: 7, intervals: [[0, 8] as const], blocks: 0 },
      { dim: 0, intervals: [[0, 100] as const], blocks: 0 }
    ]) {
      const wrong = plans.map((plan) => ({
        ...plan,
        sourceTensors: plan.sourceTensors.map((tensor) => ({ ...tensor, place }))
      }))
      assert.include(checkPlans(wrong)[0]?.message, "Its place holds")
    }
  })
})
