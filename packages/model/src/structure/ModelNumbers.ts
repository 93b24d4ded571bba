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
  valueHeadDim: ["linear_value_head_dim"]
} as const satisfies { readonly [Name in keyof ModelNumbers]: ReadonlyArray<string> }

const mostOf = 2 ** 40

/** What a config states, then what the family's own code takes where the config says nothing. */
export const numbersOf = (
  config: ConfigObject | undefined,
  fields: NumberFields = {},
  defaults: { readonly [field: string]: number } = {}
): ModelNumbers => {
  const text = config === undefined ? {} : textOf(config)
  const read = (name: keyof ModelNumbers): number | undefined => {
    const names: ReadonlyArray<string> = fields[name] ?? usualFields[name]
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
  return {
    layers: read("layers"),
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
    valueHeadDim: read("valueHeadDim")
  }
}

const whole = (length: number | undefined, parts: number | undefined): number | undefined =>
  length === undefined || parts === undefined || length % parts !== 0 ? undefined : length / parts

const expansionOf = (text: ConfigObject): number => {
  const stated = text.mamba_expand ?? text.expand
  return typeof stated === "number" && Number.isSafeInteger(stated) && stated > 0 && stated < 64 ? stated : 2
}
