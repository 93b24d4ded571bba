// SPDX-License-Identifier: Apache-2.0
/** vLLM: parameters of its models right after loading, before any kernel's own form. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import { alias, concat, type MappingRule, make, type Recipe, transpose } from "../Mapping.ts"
import type { Convention } from "./Convention.ts"
import {
  enginePlacement,
  extraLayers,
  gatelessExperts,
  joinedLatents,
  stackedExperts,
  turnedExperts,
  usualRules
} from "./engines.ts"

import { equalVocabulary, fewRanks, mixerGroups } from "./limits.ts"

const routed = "routed_experts."

/** Modules that a fused layer of experts refers to under its own name. */
const sharedNames = (router: boolean, shared: string | undefined, gate: boolean): ReadonlyArray<MappingRule> => [
  ...(router ? [alias("{owner...}.experts.gate.weight", "{owner...}.gate.weight")] : []),
  ...(shared === undefined
    ? []
    : ["gate_up_proj", "down_proj", "up_proj"].map((name) =>
        alias(`{owner...}.experts._shared_experts._layer.${name}.weight`, `{owner...}.${shared}.${name}.weight`)
      )),
  ...(gate
    ? [
        alias("{owner...}.shared_expert.expert_gate.weight", "{owner...}.shared_expert_gate.weight"),
        alias("{owner...}.experts._shared_experts._layer.expert_gate.weight", "{owner...}.shared_expert_gate.weight")
      ]
    : [])
]

/** The router's bias is a float32 whatever the model's type is. */
const correctionBias: ReadonlyArray<MappingRule> = [
  make("{owner...}.gate.e_score_correction_bias", "{owner...}.gate.e_score_correction_bias", { dtype: "float32" }),
  alias("{owner...}.experts.routed_experts.e_score_correction_bias", "{owner...}.gate.e_score_correction_bias")
]

const latentNames: ReadonlyArray<MappingRule> = [
  ...[
    "fused_qkv_a_proj",
    "q_proj",
    "kv_a_proj_with_mqa",
    "q_a_layernorm",
    "q_b_proj",
    "kv_a_layernorm",
    "kv_b_proj",
    "o_proj"
  ].map((name) => alias(`{owner...}.self_attn.mla_attn.${name}.weight`, `{owner...}.self_attn.${name}.weight`)),
  alias("{owner...}.self_attn.mla_attn.mla_attn.kv_b_proj.weight", "{owner...}.self_attn.kv_b_proj.weight")
]

/** Rotary positions run over the halves of a head there, over pairs in the checkpoint. */
const turnedHeads = (projection: string): Recipe => {
  const pairs: Recipe = { split: { split: projection, dim: 0, inner: "headDim" }, dim: 1, inner: 2 }
  return { merge: { merge: transpose(pairs, 0, 2, 1, 3), dim: 1 }, dim: 0 }
}

const deepseek = (structure: ModelStructure): ReadonlyArray<MappingRule> => [
  ...joinedLatents(structure, "fused_qkv_a_proj"),
  ...stackedExperts(routed),
  ...sharedNames(true, "shared_experts", false),
  ...correctionBias,
  alias("{owner...}.experts.gate.e_score_correction_bias", "{owner...}.gate.e_score_correction_bias"),
  ...latentNames
]

const byFamily: { readonly [family: string]: (structure: ModelStructure) => ReadonlyArray<MappingRule> } = {
  mixtral: () => [...stackedExperts(routed, "w1", "w3", "w2"), ...sharedNames(false, undefined, false)],
  qwen3_moe: () => [
    ...stackedExperts(routed),
    ...sharedNames(true, undefined, false),
    // Its class makes these on every stage.
    ...["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"].map((name) =>
      make(name, name, { stages: "all" })
    )
  ],
  gemma3: () => ["model.embed_tokens.weight", "model.norm.weight"].map((name) => make(name, name, { stages: "all" })),
  qwen2_moe: () => [...stackedExperts(routed), ...sharedNames(false, "shared_expert", true)],
  qwen3_next: () => [
    ...stackedExperts(routed),
    ...sharedNames(true, "shared_expert", true),
    make("{owner...}.linear_attn.A_log", "{owner...}.linear_attn.A_log", { dtype: "float32" })
  ],
  deepseek_v3: deepseek,
  deepseek_v32: deepseek,
  glm4_moe: () => [
    ...stackedExperts(routed),
    ...sharedNames(false, "shared_experts", false),
    make("{owner...}.mlp.gate.weight", "{owner...}.mlp.gate.weight", { dtype: "float32" }),
    ...correctionBias
  ],
  gpt_oss: () => [
    make("{model...}.embedding.weight", "{model...}.embed_tokens.weight"),
    make(
      "{owner...}.attn.qkv_proj.{kind*}",
      concat(
        "{owner...}.self_attn.q_proj.{kind*}",
        "{owner...}.self_attn.k_proj.{kind*}",
        "{owner...}.self_attn.v_proj.{kind*}"
      )
    ),
    make("{owner...}.attn.{rest...}", "{owner...}.self_attn.{rest...}"),
    ...turnedExperts(routed),
    make(`{owner...}.experts.${routed}w13_bias`, "{owner...}.experts.gate_up_proj_bias"),
    // The sum over ranks would add a bias as often as there are ranks.
    make(`{owner...}.experts.${routed}w2_bias`, { onFirst: "{owner...}.experts.down_proj_bias" })
  ],
  llama4: () => [
    make(
      "{owner...}.qkv_proj.weight",
      concat(
        turnedHeads("{owner...}.q_proj.weight"),
        turnedHeads("{owner...}.k_proj.weight"),
        "{owner...}.v_proj.weight"
      )
    ),
    ...turnedExperts(routed),
    ...sharedNames(false, "shared_expert", false)
  ],
  nemotron_h: () => [
    make("model.embed_tokens.weight", "backbone.embeddings.weight"),
    make("model.{owner...}.mixer.A", { negExp: "backbone.{owner...}.mixer.A_log" }, { dtype: "float32" }),
    make(
      "model.{owner...}.mixer.conv_weights",
      { squeeze: "backbone.{owner...}.mixer.conv1d.weight", dim: 1 },
      { also: true }
    ),
    make(
      "model.{owner...}.qkv_proj.{kind*}",
      concat(
        "backbone.{owner...}.q_proj.{kind*}",
        "backbone.{owner...}.k_proj.{kind*}",
        "backbone.{owner...}.v_proj.{kind*}"
      )
    ),
    ...gatelessExperts("model.{owner...}.experts.routed_experts.", "backbone.{owner...}.experts."),
    make("model.{owner...}.gate.weight", "backbone.{owner...}.gate.weight", { dtype: "float32" }),
    make("model.{owner...}.gate.e_score_correction_bias", "backbone.{owner...}.gate.e_score_correction_bias", {
      dtype: "float32"
    }),
    make("model.{rest...}", "backbone.{rest...}"),
    ...sharedNames(false, "shared_experts", false),
    ...correctionBias.filter((rule) => "alias" in rule)
  ]
}

/** What its classes call the embedding. */
const embeddingName =
  ({ family }: ModelStructure) =>
  (name: string): string =>
    family.name === "gpt_oss"
      ? name.replace("embed_tokens", "embedding")
      : name.replace("backbone.embeddings", "model.embed_tokens")

/** Their classes want an expert for every rank. */
const fewRankFamilies = ["qwen2_moe", "qwen3_moe", "qwen3_next"]

/** The names and fused tensors of vLLM's models. */
export const vllm: Convention = {
  name: "vllm",
  reference: "vLLM of 2026-08-20 (7cfb97e)",
  recorded: [
    "deepseek_v3",
    "gemma3_text",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "llama",
    "llama4_text",
    "mixtral",
    "nemotron_h",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next"
  ],
  families: [
    "llama",
    "qwen2",
    "qwen3",
    "phi3",
    "glm4",
    "gemma3",
    "qwen3_moe",
    "qwen2_moe",
    "mixtral",
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "llama4",
    "qwen3_next",
    "nemotron_h"
  ],
  quantized: "joined",
  placement: enginePlacement,
  mapping: (structure) => ({
    rules: [
      ...(byFamily[structure.family.name]?.(structure) ?? []),
      ...extraLayers(structure),
      ...usualRules(structure)
    ],
    others: "keep",
    limits: [
      ...(fewRankFamilies.includes(structure.family.name) ? fewRanks(structure) : []),
      // One group is copied to all ranks, more are not.
      ...mixerGroups(structure, (layer) => `model.layers.${layer}.mixer.in_proj.weight`, "divides or one"),
      ...equalVocabulary(structure, embeddingName(structure))
    ]
  })
}
