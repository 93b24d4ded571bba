// SPDX-License-Identifier: Apache-2.0
/** Rules of a user with a mistake in them: what would be lost, or would be two things, is refused by rule and tensor. */
import { assert, describe, it } from "@effect/vitest"
import { undoneBy } from "@tensorferry/model/names/files/undoneBy"
import type { Mapping, MappingRule } from "@tensorferry/model/names/Mapping"
import { namedLayouts } from "@tensorferry/model/names/namedLayouts"
import * as Result from "effect/Result"
import { structureOf } from "../../src/placement/cutModel.ts"
import { side, smallModel } from "../support/smallModels.ts"

const { tensors, family } = smallModel("llama")
const q = "{owner...}.self_attn.q_proj.weight"
const stored = tensors.find(({ name }) => name.endsWith("layers.0.self_attn.q_proj.weight"))!

const refusal = (...rules: ReadonlyArray<MappingRule>): string => {
  const mapping: Mapping = { rules, others: "keep" }
  const made = namedLayouts(tensors, {
    from: side("hf:tp=1"),
    to: { ...side("hf:tp=2"), mapping },
    ranks: "disjoint",
    family
  })
  return Result.isFailure(made) ? made.failure.message : "accepted"
}

const structure = Result.getOrThrow(structureOf(tensors, family))
const undone = (...rules: ReadonlyArray<MappingRule>) => undoneBy({ rules, others: "keep" }, structure)

const half = (index: number, more: { readonly also?: true } = {}): MappingRule => ({
  name: `{owner...}.half${index}`,
  from: { part: q, index, lengths: [1, 1] },
  ...more
})

describe("a mapping with a mistake", () => {
  it("is told where a part of a tensor is in nothing that is made", () => {
    const all = stored.shape[0]! * stored.shape[1]!
    const left = (rule: string) =>
      `rule {owner...}.${rule} leaves ${all / 2} of the ${all} elements of ${stored.name} in nothing that is made`
    assert.deepStrictEqual(undone(half(1)), [left("half1")])
    assert.deepStrictEqual(undone(half(0, { also: true }), half(1)), [])
    // A source that is still there keeps its name.
    assert.deepStrictEqual(undone(half(1, { also: true })), [])
    // Taken twice is not taken whole.
    const again: MappingRule = { name: "{owner...}.again", from: { part: q, index: 0, lengths: [2, 2] } }
    assert.deepStrictEqual(undone(half(0, { also: true }), again), [left("again")])
  })

  it("is refused where an alias is a tensor of its own", () => {
    assert.match(
      refusal({ alias: "lm_head.weight", of: "model.embed_tokens.weight" }),
      /^conflicting_alias \(lm_head\.weight by rule lm_head\.weight\): It would be another name of model\.embed_tokens\.weight/
    )
    assert.match(
      refusal({ alias: "{owner...}.up_proj.weight", of: "{owner...}.gate_proj.weight" }),
      /^conflicting_alias \(model\.layers\.0\.mlp\.up_proj\.weight by rule \{owner\.\.\.\}\.up_proj\.weight\)/
    )
    assert.strictEqual(refusal({ alias: "other.weight", of: "model.embed_tokens.weight" }), "accepted")
  })

  it("is refused where it restricts what no source has, or makes a tensor without a name", () => {
    const norm = "model.layers.{layer}.input_layernorm.weight"
    assert.match(
      refusal({ name: "norm.{layer}", from: norm, only: { number: [1] } }),
      /^invalid_rule \(norm\.\{layer\} by rule norm\.\{layer\}\): "only" restricts \{number\}, and no source has it/
    )
    assert.match(
      refusal({ name: "", from: "model.norm.weight" }),
      /^invalid_rule \(model\.norm\.weight .*without a name/
    )
  })

  it("is refused where what it joins has no such dimension", () => {
    const norms = { concat: ["model.norm.weight", "model.layers.0.input_layernorm.weight"], dim: 1 } as const
    assert.match(
      refusal({ name: "norms", from: norms }),
      /^shape_mismatch \(norms by rule norms\): \[\d+\] has no dimension 1/
    )
  })

  it("is told where a rule is for no tensor", () => {
    const rules: ReadonlyArray<MappingRule> = [
      { name: "a.{layer}", from: "model.layer.{layer}.input_layernorm.weight" },
      { name: "b.{layer}", from: "model.layers.{layer}.input_layernorm.weight" },
      { ignore: "nothing.{rest...}" },
      { ignore: "lm_head.{kind*}" }
    ]
    assert.deepStrictEqual(undone(...rules), [
      "rule a.{layer} is for no tensor of the model",
      "rule nothing.{rest...} is for no tensor of the model"
    ])
  })
})
