// SPDX-License-Identifier: Apache-2.0
/** transformers 5: parameters and buffers of its models in memory. Experts are in stacks; most other names are the checkpoint's. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import { concat, ignore, type MappingRule, make, type Recipe, stack } from "../Mapping.ts"
import type { Convention, ConventionOptions } from "./Convention.ts"
import { extraLayers, tiedHead } from "./engines.ts"

/** What names of the model's parts begin with, in the checkpoint and in memory; nothing or with a dot at the end. */
interface Paths {
  readonly from: string
  readonly to: string
}

/** Rules for names below what a model begins with. */
type Rules = (paths: Paths) => ReadonlyArray<MappingRule>

const owner = "{owner...}"

/** Experts one by one in the checkpoint, gate and up in one stack and down in another. */
const stacked =
  (own: string, theirs = own, gate = "gate_proj", up = "up_proj", down = "down_proj"): Rules =>
  ({ from, to }) => {
    const expert = (name: string): Recipe => `${from}${owner}.${own}.experts.{expert}.${name}.weight`
    return [
      make(`${to}${owner}.${theirs}.experts.gate_up_proj`, stack("expert", concat(expert(gate), expert(up)))),
      make(`${to}${owner}.${theirs}.experts.down_proj`, stack("expert", expert(down)))
    ]
  }

const gateless: Rules = ({ from, to }) =>
  ["up_proj", "down_proj"].map((name) =>
    make(`${to}${owner}.experts.${name}`, stack("expert", `${from}${owner}.experts.{expert}.${name}.weight`))
  )

/** A name below a layer that is another in memory. */
const renamed =
  (own: string, theirs: string): Rules =>
  ({ from, to }) => [make(`${to}${owner}.${theirs}`, `${from}${owner}.${own}`)]

/** Tensors that are float32 whatever the model's type is. */
const wide =
  (own: string, theirs = own): Rules =>
  ({ from, to }) => [make(`${to}${owner}.${theirs}`, `${from}${owner}.${own}`, { dtype: "float32" })]

const joined =
  (...rules: ReadonlyArray<Rules>): Rules =>
  (paths) =>
    rules.flatMap((rule) => rule(paths))

/** Rows of one matrix that belong to its parts. */
const packed =
  (own: string, parts: ReadonlyArray<string>, lengths: Extract<Recipe, { readonly part: Recipe }>["lengths"]): Rules =>
  ({ from, to }) =>
    parts.map((name, index) => {
      const isLast = index === parts.length - 1
      const part: Recipe = { part: `${from}${owner}.${own}.weight`, index, lengths }
      return make(`${to}${owner}.${name}.weight`, part, isLast ? {} : { also: true })
    })

const correctionBias = wide("e_score_correction_bias")
const sparseBlock = stacked("block_sparse_moe", "mlp", "w1", "w3", "w2")

const byType: { readonly [modelType: string]: Rules } = {
  mixtral: joined(sparseBlock, renamed("block_sparse_moe.gate.weight", "mlp.gate.weight")),
  phimoe: joined(sparseBlock, renamed("block_sparse_moe.gate.weight", "mlp.router.weight")),
  minimax_m2: joined(
    sparseBlock,
    renamed("block_sparse_moe.gate.weight", "mlp.gate.weight"),
    renamed("block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias")
  ),
  deepseek_v3: joined(stacked("mlp"), correctionBias),
  deepseek_v2: stacked("mlp"),
  glm_moe_dsa: joined(stacked("mlp"), correctionBias),
  glm4_moe: joined(stacked("mlp"), correctionBias),
  qwen2_moe: stacked("mlp"),
  qwen3_moe: stacked("mlp"),
  qwen3_next: stacked("mlp"),
  qwen3_5_moe: stacked("mlp"),
  qwen3_5_moe_text: stacked("mlp"),
  olmoe: stacked("mlp"),
  ernie4_5_moe: joined(
    stacked("mlp"),
    wide("mlp.gate.weight"),
    wide("mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"),
    correctionBias
  ),
  jamba: stacked("feed_forward"),
  lfm2_moe: joined(stacked("feed_forward", "feed_forward", "w1", "w3", "w2"), wide("feed_forward.expert_bias")),
  nemotron_h: joined(gateless, correctionBias),
  granitemoe: joined(
    renamed("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight"),
    renamed("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
    renamed("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj")
  ),
  hrm_text: joined(
    packed(
      "attn.gqkv_proj",
      ["gate_proj", "q_proj", "k_proj", "v_proj"].map((name) => `self_attn.${name}`),
      ["heads", "heads", "kvHeads", "kvHeads"]
    ),
    renamed("attn.o_proj.weight", "self_attn.o_proj.weight"),
    packed("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"], [1, 1])
  ),
  olmo_hybrid: joined(
    renamed("attention_layer_norm.weight", "input_layernorm.weight"),
    renamed("feedforward_layer_norm.weight", "post_attention_layernorm.weight"),
    ({ from, to }) => [
      make(
        `${to}${owner}.linear_attn.conv1d.weight`,
        concat(...["q", "k", "v"].map((name) => `${from}${owner}.linear_attn.${name}_conv1d.weight`))
      )
    ],
    wide("linear_attn.A_log")
  )
}

/** Names of the checkpoint begin with "model." in most, with nothing in files of a model without its head. */
const pathsOf = ({ stacks }: ModelStructure, { headless }: ConventionOptions): Paths => {
  const prefix = stacks.find(({ kind }) => kind === "language" || kind === "encoder")?.prefix ?? "model."
  const from = prefix.startsWith("model.") ? "model." : prefix
  if (headless === true) return { from, to: "" }
  return { from, to: from === "" || from === "backbone." ? "model." : from }
}

/** Layers that predict further tokens are no part of its models, nor is what stands around them. */
const unmade = (structure: ModelStructure): ReadonlyArray<MappingRule> => [
  ...extraLayers(structure),
  ...structure.stacks.flatMap(({ kind, prefix }) =>
    kind === "mtp" && prefix.includes("mtp.") ? [ignore(`${prefix}{rest...}`)] : []
  )
]

/** Everything else, where it begins with another name. */
const others = (structure: ModelStructure, { from, to }: Paths, isHeadless: boolean): ReadonlyArray<MappingRule> => {
  if (from === to) return []
  const heads = structure.modules.flatMap(({ kind, layer, tensors }) =>
    kind.spec.structure === "head" && layer === undefined ? tensors.map(({ name }) => name) : []
  )
  return [
    ...heads.map((name) => (isHeadless ? ignore(name) : make(name, name))),
    make(`${to}{rest...}`, `${from}{rest...}`)
  ]
}

export const transformers: Convention = {
  name: "transformers",
  reference: "transformers 5.18.0",
  placement: () => ({}),
  mapping: (structure, options) => {
    const paths = pathsOf(structure, options)
    const isHeadless = options.headless === true
    return {
      rules: [
        ...unmade(structure),
        ...(byType[structure.modelType]?.(paths) ?? []),
        ...(isHeadless || paths.from !== paths.to ? [] : tiedHead(structure)),
        ignore("{owner...}.rotary_emb.inv_freq"),
        ...others(structure, paths, isHeadless)
      ],
      others: "keep"
    }
  }
}
