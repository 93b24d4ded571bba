// SPDX-License-Identifier: Apache-2.0
/** Mesh plans whose parts disagree about dimensions are refused with a fault; none ends the check itself. */
import { assert, describe, it } from "@effect/vitest"
import { specsOf } from "@tensorferry/testing/planning/meshSides"
import * as Result from "effect/Result"
import type { Shape } from "../../src/base/Region.ts"
import type { MeshPlan } from "../../src/ir/MeshPlan.ts"
import { coverageFault } from "../../src/planner/Coverage.ts"
import { indexLowering, lowerRank } from "../../src/planner/Lowering.ts"
import { checkMeshPlan } from "../../src/planner/MeshCheck.ts"

const plan: MeshPlan = lowerRank(
  Result.getOrThrow(
    indexLowering(specsOf("2:S0", "2:S1", [{ shape: [8, 6] }]), {
      bucketBytes: 2 ** 20
    })
  ),
  0
)

describe("the check of a mesh plan", () => {
  it("proves the plan that the planner made", () => {
    assert.deepStrictEqual(checkMeshPlan(plan), [])
  })

  it.each<[string, "shape" | "sourceShape" | "targetShape", Shape]>([
    ["the target shard one dimension more", "targetShape", [8, 3, 1]],
    ["the target shard one dimension less", "targetShape", [8]],
    ["the source shard one dimension more", "sourceShape", [4, 6, 1]],
    ["the tensor one dimension more", "shape", [8, 6, 1]],
    ["the tensor one dimension less", "shape", [8]]
  ])("refuses a plan that gives %s", (_what, field, shape) => {
    const changed = { ...plan, tensors: [{ ...plan.tensors[0]!, [field]: shape }] }
    assert.isNotEmpty(checkMeshPlan(changed))
  })
})

describe("a proof of coverage", () => {
  it("refuses regions of other dimensions than the array, and names one", () => {
    assert.include(coverageFault([4, 4], [[[0, 4]]]), "[0:4]")
    assert.isDefined(
      coverageFault(
        [4],
        [
          [
            [0, 4],
            [0, 4]
          ]
        ]
      )
    )
    assert.isDefined(coverageFault([0], [[]]))
  })
})
