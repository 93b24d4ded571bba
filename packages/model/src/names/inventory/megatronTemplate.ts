// SPDX-License-Identifier: Apache-2.0
/**
 * The checkpoint's own tensors of a model that Megatron-Core holds whole, from what it holds and from the model's config: the
 * names and shapes from which its fused tensors were joined. What is made of them is held against the files afterwards, so a
 * wrong guess is refused and never read.
 */
import { equalShapes, type Shape } from "@tensorferry/core/base/Region"
import type { FamilyChoice } from "../../Cutting.ts"
import { findFamily } from "../../families/families.ts"
import type { ModelTensor } from "../../layout/ModelLayout.ts"
import { numbersOf } from "../../structure/ModelNumbers.ts"

/** Families whose published names are those of the table. */
const families: ReadonlySet<string> = new Set(["llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe"])

/** Parts of a tensor: their names behind the layer's, and how many rows each has. */
type Parts = ReadonlyArray<readonly [name: string, rows: number]>

/** Modules that are one tensor in both, behind `decoder.layers.N.` and `model.layers.N.`. */
const renamed: ReadonlyArray<readonly [RegExp, string]> = [
  [/^self_attention\.linear_qkv\.layer_norm_weight$/, "input_layernorm.weight"],
  [/^input_layernorm\.weight$/, "input_layernorm.weight"],
  [/^self_attention\.linear_proj\.(weight|bias)$/, "self_attn.o_proj.$1"],
  [/^self_attention\.([qk])_layernorm\.weight$/, "self_attn.$1_norm.weight"],
  [/^self_attention\.linear_q_proj\.weight$/, "self_attn.q_proj.weight"],
  [/^self_attention\.linear_q_down_proj\.weight$/, "self_attn.q_a_proj.weight"],
  [/^self_attention\.linear_q_up_proj\.layer_norm_weight$/, "self_attn.q_a_layernorm.weight"],
  [/^self_attention\.linear_q_up_proj\.weight$/, "self_attn.q_b_proj.weight"],
  [/^self_attention\.linear_kv_down_proj\.weight$/, "self_attn.kv_a_proj_with_mqa.weight"],
  [/^self_attention\.linear_kv_up_proj\.layer_norm_weight$/, "self_attn.kv_a_layernorm.weight"],
  [/^self_attention\.linear_kv_up_proj\.weight$/, "self_attn.kv_b_proj.weight"],
  [/^(?:mlp\.linear_fc1\.layer_norm_weight|pre_mlp_layernorm\.weight)$/, "post_attention_layernorm.weight"],
  [/^mlp\.linear_fc2\.(weight|bias)$/, "mlp.down_proj.$1"],
  [/^mlp\.router\.weight$/, "mlp.gate.weight"],
  [/^mlp\.router\.expert_bias$/, "mlp.gate.e_score_correction_bias"],
  [/^mlp\.experts\.linear_fc2\.weight(\d+)$/, "mlp.experts.$1.down_proj.weight"],
  [/^mlp\.shared_experts\.linear_fc2\.weight$/, "mlp.shared_experts.down_proj.weight"]
]

/** Tensors that were gates and ups. */
const joined: ReadonlyArray<readonly [RegExp, gate: string, up: string]> = [
  [/^mlp\.linear_fc1\.(weight|bias)$/, "mlp.gate_proj.$1", "mlp.up_proj.$1"],
  [/^mlp\.experts\.linear_fc1\.weight(\d+)$/, "mlp.experts.$1.gate_proj.weight", "mlp.experts.$1.up_proj.weight"],
  [
    /^mlp\.shared_experts\.linear_fc1\.weight$/,
    "mlp.shared_experts.gate_proj.weight",
    "mlp.shared_experts.up_proj.weight"
  ]
]

/** Around the layers. */
const ends: Readonly<Record<string, string>> = {
  "embedding.word_embeddings.weight": "model.embed_tokens.weight",
  "decoder.final_layernorm.weight": "model.norm.weight",
  "output_layer.weight": "lm_head.weight"
}

/** Whether a name is one of a model, and not of an optimizer or of what else is saved. */
export const isMegatronTensor = (name: string): boolean =>
  /^(embedding|decoder|output_layer|mtp)\./.test(name) && !name.includes("._extra_state")

/** Names and shapes under which the model is published; undefined where the family is not known so. */
export const megatronTemplate = (
  stored: ReadonlyArray<ModelTensor>,
  { preset, config }: FamilyChoice
): ReadonlyArray<ModelTensor> | undefined => {
  const family = findFamily(preset)
  if (family === undefined || config === undefined || !families.has(family.name)) return undefined
  const { heads, kvHeads, headDim, vocabulary } = numbersOf(config, family.fields, family.defaults)
  const partsOf = (name: string, { length, 0: height = 0 }: Shape): Parts | undefined => {
    const qkv = /^self_attention\.linear_qkv\.(weight|bias)$/.exec(name)
    if (qkv !== null) {
      if (heads === undefined || kvHeads === undefined || headDim === undefined) return undefined
      const counts = [heads, kvHeads, kvHeads]
      return ["q", "k", "v"].map((part, at) => [`self_attn.${part}_proj.${qkv[1]}`, counts[at]! * headDim] as const)
    }
    const one = renamed.find(([pattern]) => pattern.test(name))
    if (one !== undefined) return [[name.replace(one[0], one[1]), height]]
    const two = joined.find(([pattern]) => pattern.test(name))
    if (two === undefined || length === 0 || height % 2 !== 0) return undefined
    return [two[1], two[2]].map((part) => [name.replace(two[0], part), height / 2] as const)
  }
  const found: Array<ModelTensor> = []
  for (const { name, dtype, shape } of stored) {
    if (!isMegatronTensor(name)) continue
    const end = ends[name]
    const layer = /^decoder\.layers\.(\d+)\.(.*)$/.exec(name)
    if (end !== undefined) {
      // The vocabulary is padded in training.
      const rows = end === "model.norm.weight" ? shape[0] : vocabulary
      if (rows === undefined) return undefined
      found.push({ name: end, dtype, shape: [rows, ...shape.slice(1)] })
      continue
    }
    const parts = layer === null ? undefined : partsOf(layer[2]!, shape)
    // Mistral's and others' further tensors, or layers that predict further tokens.
    if (parts === undefined) return undefined
    for (const [part, rows] of parts)
      found.push({ name: `model.layers.${layer![1]}.${part}`, dtype, shape: [rows, ...shape.slice(1)] })
  }
  const [embedding, head] = ["model.embed_tokens.weight", "lm_head.weight"].map((name) =>
    found.find((tensor) => tensor.name === name)
  )
  // A tied head is saved once more by the last stage; published it is the embedding alone.
  const isTied = config.tie_word_embeddings === true && embedding !== undefined && head !== undefined
  return isTied && equalShapes(embedding.shape, head.shape) ? found.filter((tensor) => tensor !== head) : found
}
