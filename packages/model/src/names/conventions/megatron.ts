// SPDX-License-Identifier: Apache-2.0
/**
 * Megatron-core, as Megatron-Bridge names a model's parameters: queries, keys and values by query group, gate and up in one,
 * experts one by one, norms inside of the projections that follow them. Layers and experts are counted within the rank.
 */
import type { ModelStructure, Module } from "../../describe/ModelStructure.ts"
import { embeddingOfHead, equalTensors } from "../equalTensors.ts"
import {
  concat,
  interleave,
  type MakeRule,
  type MappingRule,
  make,
  type Recipe,
  refuseTensors,
  transpose
} from "../Mapping.ts"
import type { Convention, ConventionOptions } from "./Convention.ts"
import { megatronLimits } from "./limits.ts"

/** A run of layers: where they are in the checkpoint and there, and which of them are of which kind. */
interface Layers {
  readonly from: string
  readonly to: string
  readonly numbers: ReadonlyArray<number>
  /** Paths of modules below the layer, by its number. */
  readonly has: (layer: number, path: string) => boolean
  readonly isLocal: boolean
}

const modulesByLayer = (modules: ReadonlyArray<Module>): ReadonlyMap<number, ReadonlySet<string>> => {
  const found = new Map<number, Set<string>>()
  for (const { layer, kind } of modules) {
    if (layer === undefined) continue
    const known = found.get(layer) ?? new Set()
    found.set(layer, known.add(kind.spec.path))
  }
  return found
}

type Options = Omit<MakeRule, "name" | "from">

/** Rules for those of the layers that a test chooses. */
const rulesOf = (layers: Layers, numbers: ReadonlyArray<number>) => {
  const only: Options = { only: { layer: numbers } }
  return (name: string, from: Recipe, more: Options = {}): ReadonlyArray<MakeRule> =>
    numbers.length === 0 ? [] : [make(layers.to + name, from, { ...only, ...more })]
}

const under = (layers: Layers, recipe: Recipe): Recipe =>
  JSON.parse(
    JSON.stringify(recipe, (_, value) => (typeof value === "string" ? value.replace(/^@/, layers.from) : value))
  )

/** `@` stands for the layer in names of the checkpoint. */
const group = (
  layers: Layers,
  numbers: ReadonlyArray<number>,
  rules: ReadonlyArray<readonly [string, Recipe, Options?]>
) => {
  const rule = rulesOf(layers, numbers)
  return rules.flatMap(([name, from, more]) => rule(name, under(layers, from), more))
}

/** Rows by query group, then cut: with more ranks than groups a rank has part of one. */
const grouped = (...parts: ReadonlyArray<Recipe>): Recipe => ({ cut: interleave("kvHeads", ...parts) })

const attentionRules = (
  layers: Layers,
  { numbers: { heads } }: ModelStructure,
  owner: string,
  norm: string,
  isGated: boolean
): ReadonlyArray<MappingRule> => {
  const own = layers.numbers.filter((layer) => layers.has(layer, `${owner}.k_proj`))
  const q = `@${owner}.q_proj.{kind*}`
  const half = (index: number): Recipe => ({ part: q, index, lengths: [1, 1], groups: heads ?? 1 })
  return group(layers, own, [
    [
      "self_attention.linear_qkv.{kind*}",
      grouped(...(isGated ? [half(0), half(1)] : [q]), `@${owner}.k_proj.{kind*}`, `@${owner}.v_proj.{kind*}`)
    ],
    ["self_attention.linear_proj.{kind*}", `@${owner}.o_proj.{kind*}`],
    ["self_attention.q_layernorm.weight", `@${owner}.q_norm.weight`],
    ["self_attention.k_layernorm.weight", `@${owner}.k_norm.weight`],
    ["self_attention.core_attention.softmax_offset", `@${owner}.sinks`],
    [layers.isLocal ? "input_layernorm.weight" : "self_attention.linear_qkv.layer_norm_weight", `@${norm}.weight`]
  ])
}

const latentRules = (layers: Layers): ReadonlyArray<MappingRule> => {
  const own = layers.numbers.filter((layer) => layers.has(layer, "self_attn.kv_b_proj"))
  return group(layers, own, [
    ["self_attention.linear_q_proj.weight", "@self_attn.q_proj.weight"],
    ["self_attention.linear_q_down_proj.weight", "@self_attn.q_a_proj.weight"],
    ["self_attention.linear_q_up_proj.layer_norm_weight", "@self_attn.q_a_layernorm.weight"],
    ["self_attention.linear_q_up_proj.weight", "@self_attn.q_b_proj.weight"],
    ["self_attention.linear_kv_down_proj.weight", "@self_attn.kv_a_proj_with_mqa.weight"],
    ["self_attention.linear_kv_up_proj.layer_norm_weight", "@self_attn.kv_a_layernorm.weight"],
    ["self_attention.linear_kv_up_proj.weight", "@self_attn.kv_b_proj.weight"],
    ["self_attention.linear_proj.weight", "@self_attn.o_proj.weight"],
    ["input_layernorm.weight", "@input_layernorm.weight"]
  ])
}

/** Gated delta nets: what belongs to a key head lies together in the checkpoint, part by part here. */
const deltaNetRules = (layers: Layers, { numbers }: ModelStructure): ReadonlyArray<MappingRule> => {
  const own = layers.numbers.filter((layer) => layers.has(layer, "linear_attn.out_proj"))
  const { keyHeads = 1, keyHeadDim = 1, valueHeads = 1, valueHeadDim = 1 } = numbers
  const values = valueHeads / keyHeads
  const wide = [keyHeadDim, keyHeadDim, values * valueHeadDim, values * valueHeadDim]
  const part = (recipe: Recipe, index: number, lengths: ReadonlyArray<number>): Recipe => ({
    part: recipe,
    index,
    lengths,
    groups: keyHeads
  })
  const qkvz = "@linear_attn.in_proj_qkvz.weight"
  const ba = "@linear_attn.in_proj_ba.weight"
  return group(layers, own, [
    [
      "self_attention.in_proj.weight",
      concat(...wide.map((_, at) => part(qkvz, at, wide)), part(ba, 0, [values, values]), part(ba, 1, [values, values]))
    ],
    ["self_attention.in_proj.layer_norm_weight", "@input_layernorm.weight"],
    ["self_attention.conv1d.{kind*}", "@linear_attn.conv1d.{kind*}"],
    ["self_attention.A_log", "@linear_attn.A_log"],
    ["self_attention.dt_bias", "@linear_attn.dt_bias"],
    // Centred on zero here.
    ["self_attention.out_norm.weight", { add: -1, to: "@linear_attn.norm.weight" }],
    ["self_attention.out_proj.weight", "@linear_attn.out_proj.weight"]
  ])
}

/** A gated MLP, or one without a gate where the checkpoint has none. */
const mlpParts = (owner: string, to: string, isGated: boolean): ReadonlyArray<readonly [string, Recipe]> => [
  [
    `${to}.linear_fc1.{kind*}`,
    isGated ? concat(`@${owner}.gate_proj.{kind*}`, `@${owner}.up_proj.{kind*}`) : `@${owner}.up_proj.{kind*}`
  ],
  [`${to}.linear_fc2.{kind*}`, `@${owner}.down_proj.{kind*}`]
]

const expertParts = (layers: Layers, owner: string, isGated: boolean): ReadonlyArray<readonly [string, Recipe]> => {
  const from = (name: string): string => `@${owner}.experts.{expert}.${name}.weight`
  const name = (fc: string): string =>
    layers.isLocal ? `mlp.experts.local_experts.{expert.local}.${fc}.weight` : `mlp.experts.${fc}.weight{expert.local}`
  return [
    [name("linear_fc1"), isGated ? concat(from("gate_proj"), from("up_proj")) : from("up_proj")],
    [name("linear_fc2"), from("down_proj")]
  ]
}

/** Experts that the checkpoint stacks, rows of the output before those of the input. */
const stackedParts = (layers: Layers): ReadonlyArray<readonly [string, Recipe]> => {
  const name = (fc: string): string =>
    layers.isLocal ? `mlp.experts.local_experts.{expert.local}.${fc}.weight` : `mlp.experts.${fc}.weight{expert.local}`
  return [
    [name("linear_fc1"), { unstack: "@mlp.experts.gate_up_proj", at: "expert" }],
    [name("linear_fc2"), { unstack: "@mlp.experts.down_proj", at: "expert" }]
  ]
}

/** Stacks of gpt-oss: input first, gate and up in turns. */
const turnedParts: ReadonlyArray<readonly [string, Recipe]> = [
  ["mlp.experts.linear_fc1.weight{expert.local}", apart({ unstack: "@mlp.experts.gate_up_proj", at: "expert" }, true)],
  [
    "mlp.experts.linear_fc1.bias{expert.local}",
    apart({ unstack: "@mlp.experts.gate_up_proj_bias", at: "expert" }, false)
  ],
  ["mlp.experts.linear_fc2.weight{expert.local}", transpose({ unstack: "@mlp.experts.down_proj", at: "expert" }, 1, 0)],
  ["mlp.experts.linear_fc2.bias{expert.local}", { unstack: "@mlp.experts.down_proj_bias", at: "expert" }]
]

/** Rows in turns, as all of the first kind, then all of the second. */
function apart(recipe: Recipe, isMatrix: boolean): Recipe {
  const rows: Recipe = { split: isMatrix ? transpose(recipe, 1, 0) : recipe, dim: 0, inner: 2 }
  return { merge: isMatrix ? transpose(rows, 1, 0, 2) : transpose(rows, 1, 0), dim: 0 }
}

const feedForwardRules = (
  layers: Layers,
  owner: string,
  norm: string,
  isGated: boolean,
  stacks: ReadonlyArray<readonly [string, Recipe]>
): ReadonlyArray<MappingRule> => {
  const routers = [`${owner}.gate`, `${owner}.router`]
  const isRouted = (layer: number): boolean => routers.some((path) => layers.has(layer, path))
  const routed = layers.numbers.filter(isRouted)
  const dense = layers.numbers.filter((layer) => !isRouted(layer) && layers.has(layer, `${owner}.down_proj`))
  return [
    ...group(layers, dense, [
      ...mlpParts(owner, "mlp", isGated),
      [layers.isLocal ? "pre_mlp_layernorm.weight" : "mlp.linear_fc1.layer_norm_weight", `@${norm}.weight`]
    ]),
    ...group(layers, routed, [
      ["mlp.router.weight", `@${owner}.gate.weight`],
      ["mlp.router.{kind*}", `@${owner}.router.{kind*}`],
      ["mlp.router.expert_bias", `@${owner}.gate.e_score_correction_bias`],
      ...expertParts(layers, owner, isGated),
      ...stacks,
      ...["shared_expert", "shared_experts"].flatMap((shared) =>
        mlpParts(`${owner}.${shared}`, "mlp.shared_experts", isGated)
      ),
      ["mlp.shared_experts.gate_weight", `@${owner}.shared_expert_gate.weight`],
      ["pre_mlp_layernorm.weight", `@${norm}.weight`]
    ])
  ]
}

/** Gemma's four norms. */
const sandwichRules = (layers: Layers): ReadonlyArray<MappingRule> =>
  group(layers, layers.numbers, [
    ["self_attention.linear_proj.post_layernorm.weight", "@post_attention_layernorm.weight"],
    ["mlp.linear_fc2.post_layernorm.weight", "@post_feedforward_layernorm.weight"]
  ])

/** Layers whose one part is called a mixer, whatever it is. */
const mixerRules = (layers: Layers, structure: ModelStructure): ReadonlyArray<MappingRule> => {
  const mamba = layers.numbers.filter((layer) => layers.has(layer, "mixer.in_proj"))
  return [
    ...group(layers, mamba, [
      ["mixer.in_proj.layer_norm_weight", "@norm.weight"],
      ["mixer.conv1d_{kind*}", "@mixer.conv1d.{kind*}"],
      ...[
        "A_log",
        "D",
        "dt_bias",
        "in_proj.weight",
        "in_proj.bias",
        "norm.weight",
        "out_proj.weight",
        "out_proj.bias"
      ].map((name) => [`mixer.${name}`, `@mixer.${name}`] as const)
    ]),
    ...attentionRules(layers, structure, "mixer", "norm", false),
    ...feedForwardRules(layers, "mixer", "norm", false, [])
  ]
}

const layerRules = (layers: Layers, structure: ModelStructure): ReadonlyArray<MappingRule> => {
  const { name } = structure.family
  if (name === "nemotron_h") return mixerRules(layers, structure)
  const isSandwich = name === "gemma3"
  return [
    ...(isSandwich ? sandwichRules(layers) : []),
    ...latentRules(layers),
    ...deltaNetRules(layers, structure),
    ...attentionRules(layers, structure, "self_attn", "input_layernorm", name === "qwen3_next"),
    ...feedForwardRules(
      layers,
      "mlp",
      isSandwich ? "pre_feedforward_layernorm" : "post_attention_layernorm",
      true,
      name === "gpt_oss" ? turnedParts : stackedParts(layers)
    )
  ]
}

/** A layer that predicts a further token: a usual layer with modules around it. Its own embedding and head are the model's. */
const extraRules = (
  structure: ModelStructure,
  layer: number,
  at: number,
  prefix: string
): ReadonlyArray<MappingRule> => {
  const from = `${prefix}layers.{layer}.`
  const to = `mtp.layers.${at}.`
  const known = modulesByLayer(structure.modules.filter((module) => module.layer === layer))
  const layers: Layers = {
    from,
    to: `${to}mtp_model_layer.`,
    numbers: [layer],
    has: (number, path) => known.get(number)?.has(path) === true,
    isLocal: false
  }
  const only: Options = { only: { layer: [layer] }, needed: true }
  return [
    ...["enorm", "hnorm"].map((name) => make(`${to}${name}.weight`, `${from}${name}.weight`, only)),
    make(`${to}eh_proj.weight`, { cut: `${from}eh_proj.weight` }, only),
    make(`${to}final_layernorm.weight`, `${from}shared_head.norm.weight`, only),
    { ignore: `${prefix}layers.${layer}.embed_tokens.weight` },
    { ignore: `${prefix}layers.${layer}.shared_head.head.weight` },
    ...layerRules(layers, structure)
  ]
}

/** Layers that predict further tokens, as many as the config has: they are built with the model. */
const promisedLayers = (
  { family, config, numbers }: ModelStructure,
  present: ReadonlyArray<number>
): ReadonlyArray<number> => {
  const count = family.hasExtraLayers === true ? config?.num_nextn_predict_layers : undefined
  const { layers } = numbers
  return typeof count !== "number" || layers === undefined || count < 0 || count > 64
    ? present
    : Array.from({ length: count }, (_, at) => layers + at)
}

/** Biases of families whose rules name none. */
const unplacedBiases = ({ family, stacks }: ModelStructure): ReadonlyArray<MappingRule> =>
  !["llama", "qwen3", "qwen3_moe", "gemma3", "deepseek_v3", "qwen3_next"].includes(family.name)
    ? []
    : (
        [
          ["self_attn.q_proj", "self_attention.linear_qkv"],
          ["self_attn.o_proj", "self_attention.linear_proj"],
          ["mlp.gate_proj", "mlp.linear_fc1"],
          ["mlp.down_proj", "mlp.linear_fc2"]
        ] as const
      ).map(([from, to]) =>
        refuseTensors(`${stacks[0]?.prefix ?? "model."}layers.{layer}.${from}.bias`, {
          kind: "unmapped_destination",
          as: `decoder.layers.{layer}.${to}.bias`,
          why: `Megatron-Bridge has no rule for biases of ${family.name}.`
        })
      )

const endRules = (structure: ModelStructure, { stages }: ConventionOptions): ReadonlyArray<MappingRule> => {
  const { aliases, family, stacks } = structure
  const prefix = stacks[0]?.prefix ?? "model."
  const names =
    family.name === "nemotron_h"
      ? { embedding: "embeddings", norm: "norm_f", final: "decoder.final_norm" }
      : { embedding: "embed_tokens", norm: "norm", final: "decoder.final_layernorm" }
  const [stored] = embeddingOfHead(structure)
  const embedding = stored?.of ?? `${prefix}${names.embedding}.weight`
  const both = equalTensors(structure)
  const isTied = aliases.length > 0 || stored !== undefined || both.length > 0
  return [
    // With one stage the head is the embedding itself; with more the last one has a copy.
    ...(isTied && stages > 1 ? [make("output_layer.weight", embedding, { stages: "last", also: true })] : []),
    make("embedding.word_embeddings.weight", embedding, stored === undefined ? {} : { stages: "first" }),
    make(`${names.final}.weight`, `${prefix}${names.norm}.weight`),
    ...both.map(({ name }) => ({ ignore: name })),
    ...["lm_head.weight", "language_model.lm_head.weight"].map((head) => make("output_layer.weight", head))
  ]
}

const convention = (name: string, isLocal: boolean): Convention => ({
  name,
  reference: "Megatron-Bridge of 2026-08-22 (067f987)",
  recorded: isLocal
    ? ["llama", "qwen3_moe"]
    : [
        "deepseek_v3",
        "gemma3_text",
        "glm4_moe",
        "gpt_oss",
        "llama",
        "nemotron_h",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next"
      ],
  families: [
    "llama",
    "qwen2",
    "qwen3",
    "gemma3",
    "qwen3_moe",
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "qwen3_next",
    "nemotron_h"
  ],
  quantized: "none",
  placement: ({ vocabularyDivisor }) => ({
    ...(vocabularyDivisor === undefined ? {} : { vocabulary: { multipleOf: vocabularyDivisor, of: "share" as const } })
  }),
  mapping: (structure, options) => {
    const known = modulesByLayer(structure.modules)
    const own = structure.stacks.filter(({ kind }) => kind !== "mtp")
    const extra = structure.stacks.find(({ kind }) => kind === "mtp")
    const rules = [
      ...promisedLayers(structure, extra?.layers ?? []).flatMap((layer, at) =>
        extraRules(structure, layer, at, extra?.prefix ?? own[0]?.prefix ?? "model.")
      ),
      ...own.flatMap(({ prefix, layers }) =>
        layerRules(
          {
            from: `${prefix}layers.{layer}.`,
            to: "decoder.layers.{layer.local}.",
            numbers: layers,
            has: (layer, path) => known.get(layer)?.has(path) === true,
            isLocal
          },
          structure
        )
      )
    ]
    return {
      rules: [
        ...unplacedBiases(structure),
        ...endRules(structure, options),
        ...rules,
        { ignore: "{owner...}.rotary_emb.inv_freq" }
      ],
      others: "refuse",
      limits: megatronLimits(structure)
    }
  }
})

/** Megatron-core with layers of Transformer Engine. */
export const megatron: Convention = convention("megatron", false)
/** Megatron-core with its own layers: norms stand by themselves, experts are `local_experts`. */
export const megatronLocal: Convention = convention("megatron-local", true)
