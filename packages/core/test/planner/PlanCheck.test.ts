// SPDX-License-Identifier: Apache-2.0
/** Plans of all ranks are refused where a transfer ends in a tensor other than the one that it left. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { modelLayout } from "../../src/layout/ModelLayout.ts"
import { checkPlans } from "../../src/planner/PlanCheck.ts"
import { indexRosters, planRank } from "../../src/planner/RosterPlanner.ts"

/** Two matrices of one shape, cut by two ranks and then whole on one. */
const plans = (): ReadonlyArray<ReshardPlan> => {
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
    assert.deepStrictEqual(checkPlans(plans()), [])
  })

  it("refuses two sends of equal shape that exchanged their tensors", () => {
    const [own, other] = plans()
    const changed = { ...other!, sendOps: exchanged(other!.sendOps, "paramName") }
    const faults = checkPlans([own!, changed])
    assert.isNotEmpty(faults)
    assert.match(faults[0]!.message, /sends k into q|sends q into k/)
  })

  it("refuses tensors that exchanged their global names", () => {
    const [own, other] = plans()
    const changed = { ...other!, sourceTensors: exchanged(other!.sourceTensors, "resolvedName") }
    assert.isNotEmpty(checkPlans([own!, changed]))
  })
})
