// SPDX-License-Identifier: Apache-2.0
/**
 * What is known of model families: how tensors with their published names are cut, after the usual tensor-parallel scheme.
 * Projections into heads or into the hidden width of an MLP are cut by output row, projections back by input column,
 * routers and norms are replicated.
 *
 * A preset is a function of the model's tensors and, where there is one, its config.json: fused and per-expert names,
 * heads, packed blocks and tied embeddings are read off them.
 */

import type { ShardingRule, ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import type { ModelTensor } from "@tensorferry/core/layout/TensorPlacement"
import * as Schema from "effect/Schema"

const Count = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 }))

const textFields = {
  num_key_value_heads: Schema.optionalKey(Schema.NullOr(Count)),
  tie_word_embeddings: Schema.optionalKey(Schema.NullOr(Schema.Boolean))
}

/** The fields of a published config.json that decide a layout. */
export const ModelConfig = Schema.Struct({
  model_type: Schema.String,
  ...textFields,
  /** The language model of a model that also sees or hears. */
  text_config: Schema.optionalKey(Schema.Struct(textFields))
})
export type ModelConfig = typeof ModelConfig.Type

/** With more ranks than key-value heads: give each rank a whole head, or cut heads. */
export type KvHeads = "replicate" | "rows"

/** What the rules of a family are made from. */
export interface PresetInput {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly config?: ModelConfig | undefined
  /** By default "replicate" where the number of heads is known, as serving engines keep them, else "rows". */
  readonly kvHeads?: KvHeads | undefined
}

/** Makes the rules of a model family. */
export type Preset = (input: PresetInput) => ShardingRules

/** Column-parallel: weight and bias are cut by output row. */
const byRow = (name: string, more: Partial<ShardingRule> = {}): ReadonlyArray<ShardingRule> => [
  { match: `*${name}.*`, shard: 0, ...more }
]

/** Row-parallel: the weight is cut by input column, the bias added once. */
const byColumn = (name: string, more: Partial<ShardingRule> = {}): ReadonlyArray<ShardingRule> => [
  { match: `*${name}.bias`, shard: "replicate", ...more },
  { match: `*${name}.*`, shard: 1, ...more }
]

const replicated = (...names: ReadonlyArray<string>): ReadonlyArray<ShardingRule> =>
  names.map((name) => ({ match: `*${name}`, shard: "replicate" }))

const heads = (input: PresetInput): Partial<ShardingRule> => {
  const { config, kvHeads = "replicate" } = input
  const count = config?.num_key_value_heads ?? config?.text_config?.num_key_value_heads
  return count === undefined || count === null ? {} : { heads: { count, whenFewer: kvHeads } }
}

const attention = (input: PresetInput): ReadonlyArray<ShardingRule> => [
  ...byRow(".self_attn.q_proj"),
  ...byRow(".self_attn.k_proj", heads(input)),
  ...byRow(".self_attn.v_proj", heads(input)),
  ...byColumn(".self_attn.o_proj"),
  ...replicated(".self_attn.rotary_emb.inv_freq")
]

const mlp = (owner: string): ReadonlyArray<ShardingRule> => [
  ...byRow(`.${owner}.gate_proj`),
  ...byRow(`.${owner}.up_proj`),
  ...byColumn(`.${owner}.down_proj`)
]

/** Experts in one tensor each, or fused in tensors of [experts, rows, columns], gate before up. */
const experts = (owner: string): ReadonlyArray<ShardingRule> => [
  { match: `*.${owner}.experts.gate_up_proj`, shard: 1, blocks: [1, 1], experts: 0 },
  { match: `*.${owner}.experts.down_proj`, shard: 2, experts: 0 },
  ...["gate_proj", "up_proj", "w1", "w3"].flatMap((name) => byRow(`.${owner}.experts.*.${name}`, { experts: "name" })),
  ...["down_proj", "w2"].flatMap((name) => byColumn(`.${owner}.experts.*.${name}`, { experts: "name" }))
]

const norms = replicated("norm.weight", "norm.bias")

/** The embedding on the first stage, the head and the last norm on the last one. */
const ends: ReadonlyArray<ShardingRule> = [
  { match: "*embed_tokens.weight", shard: 0, stage: "first" },
  { match: "model.norm.*", shard: "replicate", stage: "last" },
  { match: "model.language_model.norm.*", shard: "replicate", stage: "last" },
  { match: "lm_head.*", shard: 0, stage: "last" }
]

const layers = ["model.layers.{}.", "model.language_model.layers.{}."]

/** The head is the embedding where the model stores no head of its own, and its config does not say otherwise. */
const tied = ({ tensors, config }: PresetInput): Pick<ShardingRules, "aliases"> => {
  const isTied = config?.tie_word_embeddings ?? config?.text_config?.tie_word_embeddings ?? config === undefined
  const embedding = tensors.find(({ name }) => name.endsWith("embed_tokens.weight"))
  if (!isTied || embedding === undefined || tensors.some(({ name }) => name === "lm_head.weight")) return {}
  return { aliases: [{ name: "lm_head.weight", of: embedding.name }] }
}

const decoder = (input: PresetInput, rules: ReadonlyArray<ShardingRule>): ShardingRules => ({
  layers,
  rules: [...ends, ...rules, ...norms],
  ...tied(input)
})

const llama: Preset = (input) => decoder(input, [...attention(input), ...mlp("mlp")])

const mixtral: Preset = (input) =>
  decoder(input, [
    ...attention(input),
    ...experts("mlp"),
    ...experts("block_sparse_moe"),
    ...replicated(".mlp.gate.weight", ".block_sparse_moe.gate.weight")
  ])

const graniteMoe: Preset = (input) =>
  decoder(input, [
    ...attention(input),
    ...experts("block_sparse_moe"),
    { match: "*.block_sparse_moe.input_linear.weight", shard: 1, blocks: [1, 1], experts: 0 },
    { match: "*.block_sparse_moe.output_linear.weight", shard: 2, experts: 0 },
    ...replicated(".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"),
    { match: "*.shared_mlp.input_linear.weight", shard: 0, blocks: [1, 1] },
    { match: "*.shared_mlp.output_linear.weight", shard: 1 }
  ])

const qwen3Moe: Preset = (input) =>
  decoder(input, [...attention(input), ...experts("mlp"), ...mlp("mlp"), ...replicated(".mlp.gate.weight")])

/** Query, key and value packed along the rows of a linear attention's input: key, key and value widths. */
const linearBlocks = ({ tensors }: PresetInput): ReadonlyArray<number> => {
  const rows = (suffix: string): number | undefined => tensors.find(({ name }) => name.endsWith(suffix))?.shape[0]
  const packed = rows(".linear_attn.in_proj_qkv.weight")
  // The gate z has as many rows as the values.
  const value = rows(".linear_attn.in_proj_z.weight")
  if (packed === undefined || value === undefined || packed <= value || (packed - value) % 2 !== 0) return [1, 1, 2]
  return [(packed - value) / 2, (packed - value) / 2, value]
}

/**
 * Full and linear attention in turns. A vision tower is replicated on the first stage, the layers that predict further
 * tokens are cut like the others and stand on the last one.
 */
const qwen35Moe: Preset = (input) => {
  const blocks = linearBlocks(input)
  const rules: ReadonlyArray<ShardingRule> = [
    ...attention(input),
    ...byRow(".linear_attn.in_proj_qkv", { blocks }),
    ...byRow(".linear_attn.conv1d", { blocks }),
    ...byRow(".linear_attn.in_proj_z"),
    ...byRow(".linear_attn.in_proj_a"),
    ...byRow(".linear_attn.in_proj_b"),
    { match: "*.linear_attn.dt_bias", shard: 0 },
    { match: "*.linear_attn.A_log", shard: 0 },
    ...byColumn(".linear_attn.out_proj"),
    ...experts("mlp"),
    ...mlp("mlp.shared_expert"),
    ...mlp("mlp"),
    ...replicated(".mlp.gate.weight", ".mlp.shared_expert_gate.weight")
  ]
  return decoder(input, [
    { match: "model.visual.*", shard: "replicate", stage: "first" },
    { match: "mtp.fc.*", shard: "replicate", stage: "last" },
    ...[...rules, ...norms].map((rule): ShardingRule => ({ ...rule, match: `mtp.${rule.match}`, stage: "last" })),
    ...rules
  ])
}

/** Latent attention: the projections down to the latents are replicated, those up to the heads cut. */
const deepseekV3: Preset = (input) =>
  decoder(input, [
    ...replicated(
      ".self_attn.q_a_proj.weight",
      ".self_attn.q_a_proj.weight_scale_inv",
      ".self_attn.kv_a_proj_with_mqa.weight",
      ".self_attn.kv_a_proj_with_mqa.weight_scale_inv"
    ),
    ...byRow(".self_attn.q_proj"),
    ...byRow(".self_attn.q_b_proj"),
    ...byRow(".self_attn.kv_b_proj"),
    ...byColumn(".self_attn.o_proj"),
    ...replicated(".self_attn.rotary_emb.inv_freq"),
    ...experts("mlp"),
    ...mlp("mlp.shared_experts"),
    ...mlp("mlp"),
    ...replicated(".mlp.gate.weight", ".mlp.gate.e_score_correction_bias", ".eh_proj.weight"),
    { match: "*.shared_head.head.weight", shard: 0 }
  ])

/** The first generation: query, key and value packed, names of its own. */
const qwen: Preset = () => ({
  layers: "transformer.h.{}.",
  rules: [
    { match: "transformer.wte.weight", shard: 0, stage: "first" },
    ...byRow(".attn.c_attn", { blocks: [1, 1, 1] }),
    ...byColumn(".attn.c_proj"),
    ...byRow(".mlp.w1"),
    ...byRow(".mlp.w2"),
    ...byColumn(".mlp.c_proj"),
    ...replicated(".ln_1.weight", ".ln_2.weight", ".rotary_emb.inv_freq"),
    { match: "transformer.ln_f.weight", shard: "replicate", stage: "last" },
    { match: "lm_head.weight", shard: 0, stage: "last" }
  ]
})

/** By the `model_type` of a config.json; more than one may name a family. */
export const presets: { readonly [name: string]: Preset } = {
  llama,
  mistral: llama,
  qwen,
  qwen2: llama,
  qwen3: llama,
  qwen3_moe: qwen3Moe,
  qwen3_5_moe: qwen35Moe,
  qwen3_5_moe_text: qwen35Moe,
  mixtral,
  granitemoe: graniteMoe,
  deepseek_v3: deepseekV3
}

/** All families whose rules are known. */
export const presetNames: ReadonlyArray<string> = Object.keys(presets)

/** The preset of this name, if there is one; names of object members as `constructor` are none. */
export const findPreset = (name: string): Preset | undefined =>
  Object.hasOwn(presets, name) ? presets[name] : undefined
