// SPDX-License-Identifier: Apache-2.0
/** Rules and names that make no layout are refused: at once, and never with a tensor that no rank holds. */
import { assert, describe, it } from "@effect/vitest"
import { layerNumber, ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { modelLayout } from "../../src/layout/ModelLayout.ts"

const config = { tp: 2, pp: 1, dp: 1, ep: 2 }
const experts = (...names: ReadonlyArray<string>) =>
  modelLayout({
    tensors: names.map((name) => ({ name, dtype: "bfloat16", shape: [4, 4] })),
    rules: { rules: [{ match: "*", shard: "replicate", experts: "name" }] },
    config
  })

describe("rules", () => {
  it.each(["{}", "", "layers", "{}.layers.", "layers.{}.{}."])("refuse %j as the place of layer numbers", (layers) => {
    const decoded = Schema.decodeUnknownResult(ShardingRules)({ rules: [], layers })
    assert.isTrue(Result.isFailure(decoded))
    assert.isTrue(Result.isFailure(Schema.decodeUnknownResult(ShardingRules)({ rules: [], layers: [layers] })))
  })

  it("find the number at the places that they state", () => {
    assert.strictEqual(layerNumber({ layers: "model.layers.{}." }, "model.layers.12.mlp.weight"), 12)
    assert.strictEqual(layerNumber({}, "model.layers.9007199254740993.mlp.weight"), undefined)
  })
})

describe("a layout of experts", () => {
  it("holds every tensor of the model", () => {
    const layout = Result.getOrThrow(experts("experts.0.w", "experts.1.w", "experts.2.w"))
    const held = layout.ranks.flatMap((rank) => layout.tensorsOf(rank).map(({ name }) => name))
    assert.sameMembers(held, ["experts.0.w", "experts.1.w", "experts.2.w"])
  })

  it("refuses a number that no float holds, which it would lose", () => {
    for (const number of ["9007199254740992", "9007199254740993", "99999999999999999999"]) {
      const refused = experts("experts.0.w", `experts.${number}.w`)
      assert.isTrue(Result.isFailure(refused), number)
      if (Result.isFailure(refused)) assert.include(refused.failure.message, `experts.${number}.w`)
    }
  })

  it("refuses a fused tensor of no experts, which no rank would hold", () => {
    const refused = modelLayout({
      tensors: [{ name: "experts.w", dtype: "bfloat16", shape: [0, 4] }],
      rules: { rules: [{ match: "*", shard: "replicate", experts: 0 }] },
      config
    })
    assert.include(Result.isFailure(refused) ? refused.failure.message : "", "experts.w")
  })
})
