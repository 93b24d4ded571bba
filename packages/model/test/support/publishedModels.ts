// SPDX-License-Identifier: Apache-2.0
/**
 * Models in full size, without their bytes: tensors by pattern, and what a config says of them in the words of engines. What is
 * expected here is read from the config's fields one by one; nothing of it comes from the families.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { checkInventory } from "../../src/names/inventory/checkInventory.ts"
import { structureOf } from "../../src/placement/cutModel.ts"
import { type ModelSummary, summaryOf } from "../../src/placement/structureSummary.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"

/** Numbers from the first to the last, the ends included. */
type NumberRun = readonly [from: number, to: number]

/** All tensors whose numbers, where the pattern has `{}`, are in these runs. */
export type PatternTensors = readonly [
  pattern: string,
  dtype: DType,
  shape: Shape,
  runs: ReadonlyArray<ReadonlyArray<NumberRun>>
]

/** A published model: where it was published, and its config as far as shapes follow from it. */
export interface PublishedModel {
  readonly origin: string
  /** The type by which transformers has a model of these modules, where it does not know the model's own. */
  readonly class?: string
  readonly config: ModelConfig
}

/** The tensors one by one. */
export const expanded = (patterns: ReadonlyArray<PatternTensors>): ReadonlyArray<ModelTensor> =>
  patterns.flatMap(([pattern, dtype, shape, runs]) => {
    let names: ReadonlyArray<string> = [pattern]
    for (const own of runs)
      names = names.flatMap((name) =>
        own.flatMap(([from, to]) =>
          Array.from({ length: to - from + 1 }, (_, at) => name.replace("{}", String(from + at)))
        )
      )
    return names.map((name) => ({ name, dtype, shape }))
  })

/** A field of the language model's config, under any of its names, as a positive number. */
const numberOf = (config: ModelConfig, ...fields: ReadonlyArray<string>): number | undefined => {
  const text = (config.text_config ?? {}) as ModelConfig
  for (const field of fields) {
    const value = text[field] ?? config[field]
    if (typeof value === "number" && value > 0) return value
  }
  return undefined
}

/** Which tensors of a model decide its degrees. */
const partsOf = (tensors: ReadonlyArray<ModelTensor>) => {
  const has = (pattern: RegExp): boolean =>
    tensors.some(({ name }) => pattern.test(name) && !/visual|vision/.test(name))
  return {
    latent: has(/kv_b_proj/),
    attention: has(/\.(k_proj|qkv_proj|key|gqkv_proj|c_attn)\./),
    mlp: has(
      /(mlp|feed_forward|mixer)\.(down_proj|w2|c_proj|fc_out)\.|output\.dense\.|layers\.\d+\.mlp\.(down_proj|c_proj)/
    ),
    shared: has(/shared_(expert|mlp)/),
    mamba: has(/(mamba|mixer)\.A_log/) && !has(/mamba\.x_proj/),
    channels: has(/mamba\.x_proj/),
    delta: has(/linear_attn\.A_log/),
    short: has(/conv\.in_proj/)
  }
}

const divides = (degree: number, count: number | undefined): boolean => count === undefined || count % degree === 0
const copies = (degree: number, count: number | undefined): boolean =>
  count === undefined || count % degree === 0 || degree % count === 0

/**
 * Whether engines run the attention and the mixers of a model on so many ranks: heads divide, key-value heads and groups
 * divide or are copied.
 */
export const headsAllow = (config: ModelConfig, tensors: ReadonlyArray<ModelTensor>, degree: number): boolean => {
  const parts = partsOf(tensors)
  const heads = numberOf(config, "num_attention_heads")
  const hidden = numberOf(config, "hidden_size")
  const attention =
    !(parts.attention || parts.latent) ||
    (divides(degree, heads) && (parts.latent || copies(degree, numberOf(config, "num_key_value_heads") ?? heads)))
  const mamba =
    !parts.mamba ||
    (divides(degree, numberOf(config, "mamba_num_heads", "mamba_n_heads", "num_heads")) &&
      copies(degree, numberOf(config, "n_groups", "mamba_n_groups")))
  const delta =
    !parts.delta ||
    (divides(degree, numberOf(config, "linear_num_key_heads")) &&
      divides(degree, numberOf(config, "linear_num_value_heads")))
  const channels = !parts.channels || divides(degree, 2 * hidden!)
  return attention && mamba && delta && channels && (!parts.short || divides(degree, hidden))
}

/** Whether the widths of MLPs that all tokens pass divide: those of dense layers, and of shared experts. */
export const widthsAllow = (config: ModelConfig, tensors: ReadonlyArray<ModelTensor>, degree: number): boolean => {
  const { mlp, shared } = partsOf(tensors)
  const width = numberOf(config, "intermediate_size")
  const count = numberOf(config, "n_shared_experts", "moe_num_shared_experts")
  const expert = numberOf(config, "moe_intermediate_size")
  const sharedWidth =
    numberOf(
      config,
      "shared_expert_intermediate_size",
      "shared_intermediate_size",
      "moe_shared_expert_intermediate_size"
    ) ?? (count === undefined || expert === undefined ? width : count * expert)
  return (!mlp || divides(degree, width)) && (!shared || divides(degree, sharedWidth))
}

interface Described {
  readonly faults: ReadonlyArray<string>
  readonly summary: ModelSummary | undefined
}

/** What of a description is not as the config says; empty where all is. */
export const describedFaults = (
  preset: string,
  config: ModelConfig,
  tensors: ReadonlyArray<ModelTensor>
): Described => {
  const made = structureOf(tensors, { preset, config, placement: {} })
  if (Result.isFailure(made)) return { faults: [made.failure.message], summary: undefined }
  const structure = made.success
  const summary = summaryOf(structure)
  const faults = structure.unknown.map(
    ({ tensor, why }) => `${tensor} is not known${why === undefined ? "" : `: ${why}`}`
  )
  const inventory = checkInventory(structure, tensors)
  if (Result.isFailure(inventory)) faults.push(inventory.failure.message)
  const expect = (what: string, found: unknown, wanted: unknown): void => {
    if (wanted !== undefined && String(found) !== String(wanted))
      faults.push(`${what} is ${found}, ${wanted} in the config`)
  }
  const stacked = numberOf(config, "num_layers_per_stack")
  const own = structure.stacks.filter(({ kind }) => kind === "language" || kind === "encoder")
  expect(
    "layers",
    own.reduce((sum, { layers }) => sum + layers.length, 0),
    // Two stacks that are run in turns: all layers count once for each turn.
    stacked === undefined ? numberOf(config, "num_hidden_layers") : 2 * stacked
  )
  const inLanguage = summary.structures.filter(({ stack }) => stack === "language" || stack === "encoder")
  const counts = (name: string, axis: string) =>
    inLanguage.find(({ structure: one }) => one === name)?.axes.find((one) => one.axis === axis)?.counts
  const heads = numberOf(config, "num_attention_heads")
  expect("heads", counts("attention", "heads") ?? heads, heads)
  const kvHeads = numberOf(config, "num_key_value_heads")
  expect("key-value heads", counts("attention", "kvHeads") ?? kvHeads, kvHeads)
  const experts = numberOf(config, "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
  const found = inLanguage.find(({ structure: one }) => one === "experts")?.experts
  expect("experts", found ?? experts, experts)
  return { faults, summary }
}
