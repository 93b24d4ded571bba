// SPDX-License-Identifier: Apache-2.0
/**
 * The counts and sizes of a config.json that decide how tensors are cut, whatever a family calls them. A number that neither
 * the config nor the family states is undefined, never guessed.
 */
import { type ConfigObject, textOf } from "./ModelConfig.ts"

/** Counts and sizes of a language model. */
export interface ModelNumbers {
  readonly layers: number | undefined
  readonly hidden: number | undefined
  readonly heads: number | undefined
  readonly kvHeads: number | undefined
  readonly headDim: number | undefined
  /** Heads, their size, groups and state of a Mamba-2 mixer. */
  readonly ssmHeads: number | undefined
  readonly ssmHeadDim: number | undefined
  readonly ssmGroups: number | undefined
  readonly ssmState: number | undefined
  /** Heads of a gated delta net. */
  readonly keyHeads: number | undefined
  readonly keyHeadDim: number | undefined
  readonly valueHeads: number | undefined
  readonly valueHeadDim: number | undefined
  readonly vocabulary: number | undefined
  /** Rows of gate and up: of an MLP, of one expert, of all shared experts. */
  readonly width: number | undefined
  readonly expertWidth: number | undefined
  readonly sharedWidth: number | undefined
  readonly experts: number | undefined
  /** What experts read, where that is not the hidden state. */
  readonly expertInput: number | undefined
  /** Latents of queries, and of keys and values; parts of a head without and with positions, and its values. */
  readonly queryRank: number | undefined
  readonly keyRank: number | undefined
  readonly plainDim: number | undefined
  readonly rotaryDim: number | undefined
  readonly valueDim: number | undefined
  /** Channels of a Mamba-1 mixer, and the rank of its steps. */
  readonly channels: number | undefined
  readonly stepRank: number | undefined
  /** Positions that a convolution sees. */
  readonly kernel: number | undefined
  /** Heads of an indexer, and their size. */
  readonly indexHeads: number | undefined
  readonly indexHeadDim: number | undefined
}

/** Which fields hold a number, the first that is stated counts. */
export type NumberFields = { readonly [Name in keyof ModelNumbers]?: ReadonlyArray<string> }

const usualFields = {
  layers: ["num_hidden_layers", "n_layer", "num_layers"],
  hidden: ["hidden_size", "n_embd", "d_model"],
  heads: ["num_attention_heads", "n_head"],
  kvHeads: ["num_key_value_heads"],
  headDim: ["head_dim", "attention_head_dim", "kv_channels"],
  ssmHeads: ["mamba_num_heads", "mamba_n_heads"],
  ssmHeadDim: ["mamba_head_dim", "mamba_d_head"],
  ssmGroups: ["n_groups", "mamba_n_groups"],
  ssmState: ["ssm_state_size", "mamba_d_state"],
  keyHeads: ["linear_num_key_heads"],
  keyHeadDim: ["linear_key_head_dim"],
  valueHeads: ["linear_num_value_heads"],
  valueHeadDim: ["linear_value_head_dim"],
  vocabulary: ["vocab_size"],
  width: ["intermediate_size"],
  expertWidth: ["moe_intermediate_size"],
  sharedWidth: ["shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"],
  experts: ["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"],
  expertInput: ["moe_latent_size"],
  queryRank: ["q_lora_rank"],
  keyRank: ["kv_lora_rank"],
  plainDim: ["qk_nope_head_dim"],
  rotaryDim: ["qk_rope_head_dim"],
  valueDim: ["v_head_dim"],
  channels: [],
  stepRank: ["mamba_dt_rank"],
  kernel: ["conv_kernel", "linear_conv_kernel_dim", "mamba_d_conv"],
  indexHeads: ["index_n_heads"],
  indexHeadDim: ["index_head_dim"]
} as const satisfies { readonly [Name in keyof ModelNumbers]: ReadonlyArray<string> }

const mostOf = 2 ** 40

/** Numbers by which tensors are cut: one that is stated, and is none, must not pass for one that is not stated. */
const deciding = [
  "layers",
  "hidden",
  "heads",
  "kvHeads",
  "headDim",
  "ssmHeads",
  "keyHeads",
  "valueHeads",
  "experts"
] as const

/** What is wrong with a stated value. Zero, null and lists per layer say nothing of all layers. */
const isWrong = (value: unknown): boolean =>
  typeof value === "number"
    ? value !== 0 && !(Number.isSafeInteger(value) && value > 0 && value < mostOf)
    : typeof value === "string" && /^\s*[-+]?\d/.test(value)

/** The first number of a config that is no count, as messages write it; undefined where there is none. */
export const numberFault = (config: ConfigObject | undefined, fields: NumberFields = {}): string | undefined => {
  if (config === undefined) return undefined
  for (const from of new Set([textOf(config), config])) {
    for (const name of deciding) {
      const field = (fields[name] ?? usualFields[name]).find((one) => isWrong(from[one]))
      if (field !== undefined) return `${field} is ${JSON.stringify(from[field]).slice(0, 40)}`
    }
  }
  return undefined
}

/** What a config states, then what the family's own code takes where the config says nothing. */
export const numbersOf = (
  config: ConfigObject | undefined,
  fields: NumberFields = {},
  defaults: { readonly [field: string]: number } = {}
): ModelNumbers => {
  const text = config === undefined ? {} : textOf(config)
  const read = (name: keyof ModelNumbers): number | undefined => stated(fields[name] ?? usualFields[name])
  const stated = (names: ReadonlyArray<string>): number | undefined => {
    for (const from of [text, config ?? {}, config === undefined ? {} : defaults]) {
      for (const field of names) {
        const value = from[field]
        if (typeof value === "number" && Number.isSafeInteger(value) && value > 0 && value < mostOf) return value
      }
    }
    return undefined
  }
  const hidden = read("hidden")
  const heads = read("heads")
  const ssmHeads = read("ssmHeads")
  const inner = hidden === undefined ? undefined : hidden * expansionOf(text)
  const expertWidth = read("expertWidth")
  const sharedExperts = stated(["n_shared_experts", "moe_num_shared_experts"])
  return {
    layers: read("layers") ?? listLength(text.layer_types) ?? listLength(text.layers_block_type),
    hidden,
    heads,
    kvHeads: read("kvHeads") ?? heads,
    headDim: read("headDim") ?? whole(hidden, heads),
    ssmHeads,
    ssmHeadDim: read("ssmHeadDim") ?? whole(inner, ssmHeads),
    ssmGroups: read("ssmGroups") ?? (ssmHeads === undefined ? undefined : 1),
    ssmState: read("ssmState"),
    keyHeads: read("keyHeads"),
    keyHeadDim: read("keyHeadDim"),
    valueHeads: read("valueHeads"),
    valueHeadDim: read("valueHeadDim"),
    vocabulary: read("vocabulary"),
    width: read("width"),
    expertWidth,
    sharedWidth:
      read("sharedWidth") ??
      (sharedExperts === undefined || expertWidth === undefined ? undefined : sharedExperts * expertWidth),
    experts: read("experts"),
    expertInput: read("expertInput") ?? hidden,
    queryRank: read("queryRank"),
    keyRank: read("keyRank"),
    plainDim: read("plainDim"),
    rotaryDim: read("rotaryDim"),
    valueDim: read("valueDim"),
    channels: inner,
    stepRank: read("stepRank"),
    kernel: read("kernel"),
    indexHeads: read("indexHeads"),
    indexHeadDim: read("indexHeadDim")
  }
}

const listLength = (value: unknown): number | undefined => (Array.isArray(value) ? value.length : undefined)

const whole = (length: number | undefined, parts: number | undefined): number | undefined =>
  length === undefined || parts === undefined || length % parts !== 0 ? undefined : length / parts

const expansionOf = (text: ConfigObject): number => {
  const stated = text.mamba_expand ?? text.expand
  return typeof stated === "number" && Number.isSafeInteger(stated) && stated > 0 && stated < 64 ? stated : 2
}
