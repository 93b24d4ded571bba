// SPDX-License-Identifier: Apache-2.0
/**
 * Small models as transformers saves them, one for each model type: layouts over tensor, pipeline and expert parallel ranks
 * and back are held against the elements that the structure gives each rank, and layouts that are wrong are found out.
 */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { checkPlans } from "@tensorferry/core/planner/PlanCheck"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import * as Result from "effect/Result"
import type { Cutting } from "../../src/Cutting.ts"
import { findFamily } from "../../src/families/families.ts"
import { type ModelTensor, parseParallelConfig } from "../../src/layout/ModelLayout.ts"
import { cutModel, structureOf } from "../../src/placement/cutModel.ts"
import { legalDegrees } from "../../src/placement/legalDegrees.ts"
import type { Placement } from "../../src/placement/Placement.ts"
import { proveLayout } from "../../src/proof/proveLayout.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"

interface Small {
  readonly config: ModelConfig
  readonly tensors: Readonly<Record<string, ReadonlyArray<number>>>
}

const { models } = JSON.parse(
  gunzipSync(readFileSync(new URL("../data/models/small-models.json.gz", import.meta.url))).toString("utf8")
) as { readonly models: Readonly<Record<string, Small>> }

const tensorsOf = ({ tensors }: Small): ReadonlyArray<ModelTensor> =>
  Object.entries(tensors).map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))

const cuttingOf = ({ config }: Small, placement: Placement = {}): Cutting => ({
  rules: [],
  family: { preset: config.model_type as string, config, placement }
})

const degrees = (text: string) => Result.getOrThrow(parseParallelConfig(text))

const laidOut = (tensors: ReadonlyArray<ModelTensor>, rules: Cutting, text: string) =>
  Result.getOrThrow(cutModel({ tensors, rules, config: degrees(text) }))

const placements: ReadonlyArray<Placement> = [
  {},
  { stages: "last", experts: "round_robin", vocabulary: { multipleOf: 64, of: "whole" } },
  { stages: "middle", experts: "ceil", vocabulary: { multipleOf: 16, of: "share" } },
  { stages: [0, 2] },
  {
    virtual: 1,
    experts: [
      [0, 1, 2],
      [2, 3]
    ]
  }
]

describe("every model type", () => {
  for (const [type, small] of Object.entries(models)) {
    it(`${type} lies where its structure has it, there and back`, () => {
      const tensors = tensorsOf(small)
      const found = Result.getOrThrow(structureOf(tensors, cuttingOf(small).family!))
      assert.deepStrictEqual(found.unknown, [])
      assert.strictEqual(found.family, findFamily(small.config.model_type as string))
      const { tp, etp } = legalDegrees(found, {})
      const hasExperts = etp.length > 0
      assert.includeMembers([...tp], [1, 2])
      const to = [
        "tp=2,pp=2",
        ...(tp.includes(4) ? ["tp=4"] : []),
        ...(hasExperts ? ["tp=2,ep=2", "dp=4,ep=2,pp=2"] : [])
      ]
      for (const placement of placements) {
        if (Array.isArray(placement.experts) && !hasExperts) continue
        const rules = cuttingOf(small, placement)
        for (const text of to) {
          const layout = laidOut(tensors, rules, text)
          for (const rank of layout.ranks) {
            const proof = Result.getOrThrow(proveLayout(layout, tensors, rules, rank, "sample"))
            assert.isAbove(proof!.elements, 0)
          }
          const whole = laidOut(tensors, rules, "tp=1")
          for (const [a, b] of [[whole, layout] as const, [layout, whole] as const]) {
            const index = Result.getOrThrow(indexRosters(a.roster, b.roster))
            const size = Math.max(a.ranks.length, b.ranks.length)
            assert.deepStrictEqual(checkPlans(Array.from({ length: size }, (_, rank) => planRank(index, rank))), [])
          }
        }
      }
    }, 60_000)
  }
})

describe("a layout that is not the structure's", () => {
  const small = models.qwen3_moe!
  const tensors = tensorsOf(small)
  const rules = cuttingOf(small)

  it("is refused with the tensor, the element and the rank", () => {
    const wrong: Cutting = { ...rules, rules: [{ match: "*.q_proj.weight", shard: 1 }] }
    const layout = laidOut(tensors, wrong, "tp=2")
    const proof = proveLayout(layout, tensors, rules, 0, "sample")
    assert.match(
      Result.isFailure(proof) ? proof.failure.message : "proved",
      /q_proj.*Rank 0 holds \[64,32\].*by the structure it is \[32,64\]/
    )
    // What a rule states is the user's word.
    assert.isTrue(Result.isSuccess(proveLayout(layout, tensors, wrong, 0, "all")))
  })

  it("is refused where a rank lacks what it must hold, or holds what is another's", () => {
    const layout = laidOut(tensors, rules, "pp=2")
    const name = "model.norm.weight"
    const without = {
      ...layout,
      tensorsOf: (rank: number) => layout.tensorsOf(rank).filter((one) => one.name !== name)
    }
    const lacking = proveLayout(without, tensors, rules, 1, "sample")
    assert.match(Result.isFailure(lacking) ? lacking.failure.message : "", /Rank 1 must hold it and does not/)
    const more = {
      ...layout,
      tensorsOf: (rank: number) => [...layout.tensorsOf(0), ...(rank === 0 ? [] : layout.tensorsOf(1))]
    }
    const surplus = proveLayout(more, tensors, rules, 1, "sample")
    assert.match(
      Result.isFailure(surplus) ? surplus.failure.message : "",
      /Rank 1 holds it; by the structure it is on other ranks/
    )
  })

  it("is refused where two rows are exchanged, by all elements and by the edges of what is cut", () => {
    const layout = laidOut(tensors, rules, "tp=2")
    const wrong = {
      ...layout,
      tensorsOf: (rank: number) =>
        layout.tensorsOf(rank).map((local) =>
          local.name === "model.layers.0.self_attn.k_proj.weight"
            ? {
                ...local,
                pieces: local.pieces.map((piece) => ({
                  ...piece,
                  global: [
                    [1, 17],
                    [0, 64]
                  ] as const
                }))
              }
            : local
        )
    }
    for (const extent of ["sample", "all"] as const) {
      const proof = proveLayout(wrong, tensors, rules, 0, extent)
      assert.match(
        Result.isFailure(proof) ? proof.failure.message : "",
        /Rank 0 has element \[1,0\] at \[0,0\]; by the structure it is element \[0,0\]/
      )
    }
  })
})
