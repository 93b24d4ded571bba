// SPDX-License-Identifier: Apache-2.0
/** SGLang: parameters of its models right after loading, before any kernel's own form. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import { type MappingRule, make, refuseTensors } from "../Mapping.ts"
import type { Convention } from "./Convention.ts"
import {
  enginePlacement,
  extraLayers,
  joinedLatents,
  stackedExperts,
  tiedHead,
  turnedExperts,
  usualRules
} from "./engines.ts"
import { equalVocabulary, fewRanks } from "./limits.ts"

const deepseek = (structure: ModelStructure): ReadonlyArray<MappingRule> => [
  ...joinedLatents(structure, "fused_qkv_a_proj_with_mqa"),
  ...stackedExperts("")
]

const byFamily: { readonly [family: string]: (structure: ModelStructure) => ReadonlyArray<MappingRule> } = {
  mixtral: () => stackedExperts("", "w1", "w3", "w2"),
  qwen3_moe: () => stackedExperts(""),
  qwen2_moe: () => stackedExperts(""),
  glm4_moe: () => stackedExperts(""),
  deepseek_v3: deepseek,
  deepseek_v32: deepseek,
  llama4: () => [
    refuseTensors("{owner...}.feed_forward.experts.{kind*}", {
      kind: "unmapped_source",
      why: "Its class for the language model by itself does not load stacks of experts."
    })
  ],
  gpt_oss: () => [
    ...turnedExperts(""),
    make("{owner...}.experts.w13_weight_bias", "{owner...}.experts.gate_up_proj_bias"),
    // The sum over ranks would add a bias as often as there are ranks.
    make("{owner...}.experts.w2_weight_bias", { onFirst: "{owner...}.experts.down_proj_bias" }),
    make("{owner...}.self_attn.sinks", "{owner...}.self_attn.sinks", { dtype: "bfloat16" })
  ]
}

/** A class that keeps the embedding whole on every rank. */
const wholeEmbedding = (structure: ModelStructure): ReadonlyArray<MappingRule> => [
  ...tiedHead(structure, (name) => ({ whole: name })),
  make("{model...}.embed_tokens.weight", { whole: "{model...}.embed_tokens.weight" })
]

/** Their classes want an expert for every rank. */
const fewRankFamilies = ["qwen2_moe", "qwen3_moe", "deepseek_v3", "glm4_moe"]

/** The names and fused tensors of SGLang's models. */
export const sglang: Convention = {
  name: "sglang",
  reference: "SGLang of 2026-08-22 (d315eb7)",
  recorded: [
    "deepseek_v3",
    "gemma3_text",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "llama",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe"
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
    "gpt_oss"
  ],
  quantized: "joined",
  placement: enginePlacement,
  mapping: (structure: ModelStructure) => ({
    rules: [
      ...extraLayers(structure),
      ...(byFamily[structure.family.name]?.(structure) ?? []),
      ...usualRules(structure, structure.family.name === "gemma3" ? wholeEmbedding(structure) : undefined)
    ],
    others: "keep",
    limits: [
      ...(fewRankFamilies.includes(structure.family.name) ? fewRanks(structure) : []),
      ...(structure.family.name === "gemma3" ? [] : equalVocabulary(structure))
    ]
  })
}
