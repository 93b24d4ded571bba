// SPDX-License-Identifier: Apache-2.0
/** What a rank does by a plan, in words, whichever planner made it. */
import { parseMeshLayout } from "@tensorferry/core/layout/MeshText"
import { indexLowering, lowerRank } from "@tensorferry/core/planner/Lowering"
import { planMesh } from "@tensorferry/core/planner/MeshPlanner"
import * as Result from "effect/Result"
import { assert, describe, it } from "vitest"
import { explainPlan } from "../../src/output/Explanation.ts"

const wordsOf = (from: string, to: string, rank: number, targetDtype: "float32" | "bfloat16" = "float32") => {
  const [source, target] = [from, to].map((text) => Result.getOrThrow(parseMeshLayout(text)))
  const map = Result.getOrThrow(planMesh(source!, target!))
  const spec = { name: "w", shape: [4], sourceDtype: "float32", targetDtype, map } as const
  const plan = lowerRank(Result.getOrThrow(indexLowering([spec])), rank)
  return explainPlan(plan).groups.flatMap(({ peers, steps }) => steps.map(({ words, bytes }) => [peers, words, bytes]))
}

describe("an explanation of a plan between meshes", () => {
  it("names contributions, reductions, and all ranks that get the same", () => {
    assert.deepStrictEqual(wordsOf("2:P(sum)", "3@1:R", 1), [
      [[0], "rank 1 contributes w[0:4] (float32[4]) to the reduction on rank 0", 16],
      [[0], "rank 0 sends w[0:4] (float32[4]) to rank 1 into [0:4]", 16]
    ])
    assert.deepStrictEqual(wordsOf("2:P(sum)", "3@1:R", 0), [
      [[1], "rank 1 contributes w[0:4] (float32[4]) to the reduction on rank 0", 16],
      [[1, 2, 3], "rank 0 sends w[0:4] (float32[4]), sum over ranks 0, 1 to ranks 1, 2, 3 into [0:4]", 48]
    ])
  })

  it("names copies within a rank, and the type that travels", () => {
    assert.deepStrictEqual(wordsOf("1:R", "1:R", 0, "bfloat16"), [
      [[], "rank 0 copies w[0:4] (bfloat16[4]) into [0:4] of its own destination", 8]
    ])
  })
})
