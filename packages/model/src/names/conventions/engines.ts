// SPDX-License-Identifier: Apache-2.0
/** Rules that inference engines share: queries, keys and values in one matrix, gates and ups in one, experts in stacks. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import type { Placement } from "../../placement/Placement.ts"
import { embeddingOfHead, equalTensors } from "../equalTensors.ts"
import { alias, concat, ignore, type MappingRule, make, type Recipe, stack, transpose } from "../Mapping.ts"

/** Query, key and value of every attention, weight and bias alike. */
export const joinedAttention: ReadonlyArray<MappingRule> = [
  make(
    "{owner...}.qkv_proj.{kind*}",
    concat("{owner...}.q_proj.{kind*}", "{owner...}.k_proj.{kind*}", "{owner...}.v_proj.{kind*}")
  )
]

/** Gate and up of every MLP that is not an expert. */
export const joinedMlp: ReadonlyArray<MappingRule> = [
  make("{owner...}.gate_up_proj.{kind*}", concat("{owner...}.gate_proj.{kind*}", "{owner...}.up_proj.{kind*}"))
]

/** Experts one by one in the checkpoint, all in two stacks in the engine. `path` is what their parameters begin with. */
export const stackedExperts = (
  path: string,
  gate = "gate_proj",
  up = "up_proj",
  down = "down_proj"
): ReadonlyArray<MappingRule> => {
  const expert = (name: string, kind = "weight"): Recipe => `{owner...}.experts.{expert}.${name}.${kind}`
  const scale = "weight_scale_inv"
  return [
    // Scales of blocks lie as the blocks of the weights do.
    make(`{owner...}.experts.${path}w13_${scale}`, stack("expert", concat(expert(gate, scale), expert(up, scale)))),
    make(`{owner...}.experts.${path}w2_${scale}`, stack("expert", expert(down, scale))),
    make(`{owner...}.experts.${path}w13_weight`, stack("expert", concat(expert(gate), expert(up)))),
    make(`{owner...}.experts.${path}w2_weight`, stack("expert", expert(down))),
    // Checkpoints that stack them already.
    make(`{owner...}.experts.${path}w13_weight`, "{owner...}.experts.gate_up_proj"),
    make(`{owner...}.experts.${path}w2_weight`, "{owner...}.experts.down_proj")
  ]
}

/** Experts without a gate; both paths lead to the experts. */
export const gatelessExperts = (path: string, from: string): ReadonlyArray<MappingRule> => [
  ...["weight", "weight_scale_inv"].flatMap((kind) => [
    make(`${path}w13_${kind}`, stack("expert", `${from}{expert}.up_proj.${kind}`)),
    make(`${path}w2_${kind}`, stack("expert", `${from}{expert}.down_proj.${kind}`))
  ])
]

/** Stacks whose matrices are stored input first. */
export const turnedExperts = (path: string): ReadonlyArray<MappingRule> => [
  make(`{owner...}.experts.${path}w13_weight`, transpose("{owner...}.experts.gate_up_proj", 0, 2, 1)),
  make(`{owner...}.experts.${path}w2_weight`, transpose("{owner...}.experts.down_proj", 0, 2, 1))
]

/** What leads to the latents of latent attention. Where queries have none, both stand by themselves. */
export const joinedLatents = ({ modules }: ModelStructure, name: string): ReadonlyArray<MappingRule> => {
  const [queries, keys] = ["{owner...}.q_a_proj.{kind*}", "{owner...}.kv_a_proj_with_mqa.{kind*}"]
  const plain = "{owner...}.self_attn.q_proj.{kind*}"
  return modules.some(({ kind }) => kind.spec.path.endsWith("q_a_proj"))
    ? [make(`{owner...}.${name}.{kind*}`, concat(queries, keys))]
    : [make(plain, plain)]
}

/** Layers that predict further tokens are a model of their own in engines. */
export const extraLayers = ({ stacks }: ModelStructure): ReadonlyArray<MappingRule> =>
  stacks.flatMap(({ kind, prefix, layers }) =>
    kind === "mtp" ? layers.map((layer) => ignore(`${prefix}layers.${layer}.{rest...}`)) : []
  )

/** A head that is the embedding: the last stage has the embedding for it. */
export const tiedHead = (
  structure: ModelStructure,
  held: (name: string) => Recipe = (name) => name
): ReadonlyArray<MappingRule> => [
  ...structure.aliases.flatMap(({ name, of }) => [make(of, held(of), { stages: "ends" }), alias(name, of)]),
  // Where only the head is stored it is the embedding.
  ...embeddingOfHead(structure).flatMap(({ name, of }) => [make(name, held(of), { stages: "ends" }), alias(of, name)]),
  // Where both are stored, systems load the embedding and leave the head.
  ...equalTensors(structure).flatMap(({ name, of }) => [
    make(of, held(of), { stages: "ends" }),
    alias(name, of),
    ignore(name)
  ])
]

/** What engines do with all that a family's own rules leave: queries, gates, the head. */
export const usualRules = (
  structure: ModelStructure,
  head: ReadonlyArray<MappingRule> = tiedHead(structure)
): ReadonlyArray<MappingRule> => [...joinedAttention, ...joinedMlp, ...head, ignore("{owner...}.rotary_emb.inv_freq")]

/** Layers, vocabulary and experts where engines put them. */
export const enginePlacement = (): Placement => ({
  stages: "middle",
  vocabulary: { multipleOf: 64, of: "whole" },
  experts: "linear"
})
