// SPDX-License-Identifier: Apache-2.0
/**
 * Updates between the names of two systems, beside the same bytes under one name: what fusing, splitting and interleaving on
 * the way cost. Real shapes; both sides hold the whole model. Pure.
 */
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import { findConvention } from "@tensorferry/model/names/conventions/conventions"
import { type MappedLayout, mappedLayouts } from "@tensorferry/model/names/mappedLayouts"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"

interface NamedModel {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly config: ModelConfig
}

type Shapes = ReadonlyArray<readonly [name: string, shape: ReadonlyArray<number>]>

const modelOf = (config: ModelConfig, shapes: Shapes): NamedModel => ({
  config,
  tensors: shapes.map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))
})

/** llama-8b by the checkpoint's names: 291 tensors, 16.06 GB. Lengths are divided for rehearsals. */
const llama = (shrink: number): NamedModel => {
  const [hidden, head, inner, vocabulary] = [4096, 128, 14_336, 128_256].map(
    (length) => Math.ceil(length / shrink / 8) * 8
  )
  const layer = (at: number): Shapes =>
    (
      [
        ["self_attn.q_proj", [32 * head!, hidden!]],
        ["self_attn.k_proj", [8 * head!, hidden!]],
        ["self_attn.v_proj", [8 * head!, hidden!]],
        ["self_attn.o_proj", [hidden!, 32 * head!]],
        ["mlp.gate_proj", [inner!, hidden!]],
        ["mlp.up_proj", [inner!, hidden!]],
        ["mlp.down_proj", [hidden!, inner!]],
        ["input_layernorm", [hidden!]],
        ["post_attention_layernorm", [hidden!]]
      ] as const
    ).map(([name, shape]) => [`model.layers.${at}.${name}.weight`, shape])
  return modelOf(
    {
      model_type: "llama",
      hidden_size: hidden!,
      num_attention_heads: 32,
      num_key_value_heads: 8,
      head_dim: head!,
      num_hidden_layers: 32,
      intermediate_size: inner!,
      vocab_size: vocabulary!
    },
    [
      ["model.embed_tokens.weight", [vocabulary!, hidden!]],
      ...Array.from({ length: 32 }, (_, at) => layer(at)).flat(),
      ["model.norm.weight", [hidden!]],
      ["lm_head.weight", [vocabulary!, hidden!]]
    ]
  )
}

/** 8 layers of 128 experts, expert by expert: 3,146 tensors, 10.2 GB. */
const experts = (shrink: number): NamedModel => {
  const [hidden, head, inner, vocabulary] = [2048, 128, 768, 151_936].map(
    (length) => Math.ceil(length / shrink / 8) * 8
  )
  const layer = (at: number): Shapes => {
    const prefix = `model.layers.${at}.`
    const own: Shapes = [
      ["self_attn.q_proj.weight", [32 * head!, hidden!]],
      ["self_attn.k_proj.weight", [4 * head!, hidden!]],
      ["self_attn.v_proj.weight", [4 * head!, hidden!]],
      ["self_attn.o_proj.weight", [hidden!, 32 * head!]],
      ["self_attn.q_norm.weight", [head!]],
      ["self_attn.k_norm.weight", [head!]],
      ["input_layernorm.weight", [hidden!]],
      ["post_attention_layernorm.weight", [hidden!]],
      ["mlp.gate.weight", [128, hidden!]],
      ...Array.from(
        { length: 128 },
        (_, expert): Shapes => [
          [`mlp.experts.${expert}.gate_proj.weight`, [inner!, hidden!]],
          [`mlp.experts.${expert}.up_proj.weight`, [inner!, hidden!]],
          [`mlp.experts.${expert}.down_proj.weight`, [hidden!, inner!]]
        ]
      ).flat()
    ]
    return own.map(([name, shape]) => [prefix + name, shape] as const)
  }
  return modelOf(
    {
      model_type: "qwen3_moe",
      hidden_size: hidden!,
      num_attention_heads: 32,
      num_key_value_heads: 4,
      head_dim: head!,
      num_hidden_layers: 8,
      num_experts: 128,
      moe_intermediate_size: inner!,
      intermediate_size: 3 * inner!,
      vocab_size: vocabulary!
    },
    [
      ["model.embed_tokens.weight", [vocabulary!, hidden!]],
      ...Array.from({ length: 8 }, (_, at) => layer(at)).flat(),
      ["model.norm.weight", [hidden!]],
      ["lm_head.weight", [vocabulary!, hidden!]]
    ]
  )
}

/** 4 layers of 32 experts in stacks, input first, gate and up in turns: 6.4 GB that an engine wants the other way round. */
const turned = (shrink: number): NamedModel => {
  const [hidden, inner, vocabulary] = [2880, 2880, 4096].map((length) => Math.ceil(length / shrink / 8) * 8)
  const layer = (at: number): Shapes =>
    (
      [
        ["self_attn.q_proj.weight", [4096, hidden!]],
        ["self_attn.k_proj.weight", [512, hidden!]],
        ["self_attn.v_proj.weight", [512, hidden!]],
        ["self_attn.o_proj.weight", [hidden!, 4096]],
        ["self_attn.q_proj.bias", [4096]],
        ["self_attn.k_proj.bias", [512]],
        ["self_attn.v_proj.bias", [512]],
        ["self_attn.o_proj.bias", [hidden!]],
        ["self_attn.sinks", [64]],
        ["input_layernorm.weight", [hidden!]],
        ["post_attention_layernorm.weight", [hidden!]],
        ["mlp.router.weight", [32, hidden!]],
        ["mlp.router.bias", [32]],
        ["mlp.experts.gate_up_proj_bias", [32, 2 * inner!]],
        ["mlp.experts.down_proj_bias", [32, hidden!]],
        ["mlp.experts.gate_up_proj", [32, hidden!, 2 * inner!]],
        ["mlp.experts.down_proj", [32, inner!, hidden!]]
      ] as const
    ).map(([name, shape]) => [`model.layers.${at}.${name}`, shape])
  return modelOf(
    {
      model_type: "gpt_oss",
      hidden_size: hidden!,
      num_attention_heads: 64,
      num_key_value_heads: 8,
      head_dim: 64,
      num_hidden_layers: 4,
      num_local_experts: 32,
      intermediate_size: inner!,
      vocab_size: vocabulary!
    },
    [
      ["model.embed_tokens.weight", [vocabulary!, hidden!]],
      ...Array.from({ length: 4 }, (_, at) => layer(at)).flat(),
      ["model.norm.weight", [hidden!]],
      ["lm_head.weight", [vocabulary!, hidden!]]
    ]
  )
}

/** What is moved from rank 0 to rank 1, and the limit in multiples of the first case of the same model. */
export const namedCases = [
  { name: "llama-8b, the checkpoint's names on both sides", model: llama, from: "hf", to: "hf" },
  { name: "llama-8b, Megatron's fused tensors -> the checkpoint's names", model: llama, from: "megatron", to: "hf" },
  { name: "llama-8b, the checkpoint's names -> Megatron's fused tensors", model: llama, from: "hf", to: "megatron" },
  { name: "llama-8b, Megatron's fused tensors -> vLLM's", model: llama, from: "megatron", to: "vllm" },
  { name: "experts, one by one on both sides", model: experts, from: "hf", to: "hf" },
  { name: "experts, stacked -> one by one", model: experts, from: "transformers", to: "hf" },
  { name: "experts, one by one -> stacked", model: experts, from: "hf", to: "transformers" },
  { name: "experts, Megatron's -> vLLM's stacks", model: experts, from: "megatron", to: "vllm" },
  { name: "stacked experts, input first on both sides", model: turned, from: "hf", to: "hf" },
  { name: "stacked experts, input first -> vLLM's, output first", model: turned, from: "hf", to: "vllm" },
  { name: "stacked experts, vLLM's, output first -> input first", model: turned, from: "vllm", to: "hf" }
] as const

/** Both layouts of a case: rank 0 has the source, rank 1 the destination. */
export const namedCase = (
  at: number,
  shrink = 1
): { readonly name: string; readonly source: MappedLayout; readonly destination: MappedLayout } => {
  const { name, model, from, to } = namedCases[at]!
  const { tensors, config } = model(shrink)
  const structure = Result.getOrThrow(
    structureOf(tensors, { preset: config.model_type as string, config, placement: {} })
  )
  const options = { stages: 1, tp: 1 }
  const side = (convention: string, firstRank: number) => {
    const found = findConvention(convention)!
    return {
      structure,
      mapping: found.mapping(structure, options),
      // Padding of vocabularies differs by system, and is not what is measured.
      placement: {},
      config: { tp: 1, pp: 1, dp: 1 },
      firstRank
    }
  }
  return { name, ...Result.getOrThrow(mappedLayouts(tensors, side(from, 0), side(to, 1))) }
}
