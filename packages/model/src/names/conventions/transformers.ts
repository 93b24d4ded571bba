// SPDX-License-Identifier: Apache-2.0
/** transformers 5: parameters and buffers of its models in memory. Experts are in stacks; most other names are the checkpoint's. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import { embeddingOfHead, equalTensors } from "../equalTensors.ts"
import { alias, concat, ignore, type MappingRule, make, type Recipe, stack } from "../Mapping.ts"
import type { Convention, ConventionOptions } from "./Convention.ts"
import { extraLayers } from "./engines.ts"

/** What names of the model's layers begin with, in the checkpoint and in memory; nothing where that is the same. */
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
    const expert = (name: string, kind = "weight"): Recipe => `${from}${owner}.${own}.experts.{expert}.${name}.${kind}`
    const scale = "weight_scale_inv"
    return [
      // Scales of blocks of FP8 lie as the blocks of the weights do.
      make(
        `${to}${owner}.${theirs}.experts.gate_up_proj_scale_inv`,
        stack("expert", concat(expert(gate, scale), expert(up, scale)))
      ),
      make(`${to}${owner}.${theirs}.experts.down_proj_scale_inv`, stack("expert", expert(down, scale))),
      make(`${to}${owner}.${theirs}.experts.gate_up_proj`, stack("expert", concat(expert(gate), expert(up)))),
      make(`${to}${owner}.${theirs}.experts.down_proj`, stack("expert", expert(down)))
    ]
  }

const gateless: Rules = ({ from, to }) =>
  ["up_proj", "down_proj"].flatMap((name) => {
    const expert = `${from}${owner}.experts.{expert}.${name}.weight`
    return [
      make(`${to}${owner}.experts.${name}`, stack("expert", expert)),
      make(`${to}${owner}.experts.${name}_scale_inv`, stack("expert", `${expert}_scale_inv`))
    ]
  })

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

const graniteBlock = joined(
  renamed("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight"),
  renamed("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
  renamed("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj")
)

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
  deepseek_v32: joined(stacked("mlp"), correctionBias),
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
  granitemoe: graniteBlock,
  granitemoeshared: graniteBlock,
  granitemoehybrid: graniteBlock,
  hunyuan_v1_moe: stacked("mlp"),
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

/** A beginning of names, in the checkpoint and in memory. */
type Beginning = readonly [from: string, to: string]

/** Models that also see have the language model and the tower inside of one another, otherwise than in most files. */
const seeing: { readonly [prefix: string]: ReadonlyArray<Beginning> } = {
  "language_model.model.": [
    ["language_model.model.", "model.language_model."],
    ["language_model.lm_head.", "lm_head."],
    ["vision_tower.", "model.vision_tower."],
    ["multi_modal_projector.", "model.multi_modal_projector."]
  ],
  "model.": [
    ["model.", "model.language_model."],
    ["visual.", "model.visual."]
  ]
}

const seeingTypes: { readonly [modelType: string]: string } = {
  gemma3: "language_model.model.",
  mistral3: "language_model.model.",
  qwen2_vl: "model.",
  qwen2_5_vl: "model."
}

/** How names begin that begin otherwise in memory; names of a model without its head begin with nothing. */
const beginningsOf = (
  { config, family, modelType, stacks }: ModelStructure,
  { headless }: ConventionOptions
): ReadonlyArray<Beginning> => {
  const prefix = stacks.find(({ kind }) => kind === "language" || kind === "encoder")?.prefix ?? "model."
  if (headless === true) return [[prefix.startsWith("model.") ? "model." : prefix, ""]]
  if (seeingTypes[modelType] === prefix) return seeing[prefix]!
  if (family.name === "nemotron_h" && prefix === "backbone.") return [["backbone.", "model."]]
  // A class without a head has no owner's name in front of its own, and no encoder is called so.
  const isBase = stacks.some(({ kind }) => kind === "encoder") || /Model$/.test(String(config?.architectures))
  return prefix === "" && !isBase ? [["", "model."]] : []
}

const renamedBy =
  (beginnings: ReadonlyArray<Beginning>) =>
  (name: string): string => {
    const [from, to] = beginnings.find(([own]) => name.startsWith(own)) ?? ["", ""]
    return to + name.slice(from.length)
  }

/** Layers that predict further tokens are no part of its models, nor is what stands around them. */
const unmade = (structure: ModelStructure): ReadonlyArray<MappingRule> => [
  ...extraLayers(structure),
  ...structure.stacks.flatMap(({ kind, prefix }) =>
    kind === "mtp" && prefix.includes("mtp.") ? [ignore(`${prefix}{rest...}`)] : []
  )
]

const headNames = ({ modules }: ModelStructure): ReadonlyArray<string> =>
  modules.flatMap(({ kind, layer, tensors }) =>
    kind.spec.structure === "head" && layer === undefined ? tensors.map(({ name }) => name) : []
  )

/** Everything else, where it begins with another name. */
const others = (
  structure: ModelStructure,
  beginnings: ReadonlyArray<Beginning>,
  isHeadless: boolean
): ReadonlyArray<MappingRule> => {
  if (beginnings.every(([from, to]) => from === to)) return []
  const rename = renamedBy(beginnings)
  const isStated = (name: string): boolean => beginnings.some(([from]) => from !== "" && name.startsWith(from))
  return [
    ...headNames(structure).map((name) =>
      isHeadless ? ignore(name) : make(isStated(name) ? rename(name) : name, name)
    ),
    ...beginnings.map(([from, to]) => make(`${to}{rest...}`, `${from}{rest...}`))
  ]
}

/** The head that is the embedding, under the names of memory. Encoders tie it and its bias whatever the config says. */
const tied = (structure: ModelStructure, rename: (name: string) => string): ReadonlyArray<MappingRule> => [
  ...structure.aliases.flatMap(({ name, of }) => [
    make(rename(of), of, { stages: "ends" }),
    alias(rename(name), rename(of))
  ]),
  // Where only the head is stored it is the embedding.
  ...embeddingOfHead(structure).flatMap(({ name, of }) => [
    make(rename(name), of, { stages: "ends" }),
    alias(rename(of), rename(name))
  ]),
  // Where both are stored they are one parameter, which is the embedding.
  ...equalTensors(structure).flatMap(({ name, of }) => [
    make(rename(of), of, { stages: "ends" }),
    alias(rename(name), rename(of)),
    ignore(name)
  ]),
  ...(structure.family.name === "bert"
    ? [
        alias("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        alias("cls.predictions.decoder.bias", "cls.predictions.bias"),
        alias("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        alias("lm_head.decoder.bias", "lm_head.bias")
      ]
    : [])
]

/** The names of models in memory of transformers, where they are not those of their checkpoints. */
export const transformers: Convention = {
  name: "transformers",
  reference: "transformers 5.18.0",
  quantized: "stacked",
  placement: () => ({}),
  mapping: (structure, options) => {
    const beginnings = beginningsOf(structure, options)
    const isHeadless = options.headless === true
    const [[from, to] = ["", ""]] = beginnings
    return {
      rules: [
        ...unmade(structure),
        ...(byType[structure.modelType]?.({ from, to }) ?? []),
        ...(isHeadless ? [] : tied(structure, renamedBy(beginnings))),
        ignore("{owner...}.rotary_emb.inv_freq"),
        ...others(structure, beginnings, isHeadless)
      ],
      others: "keep"
    }
  }
}
