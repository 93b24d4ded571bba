// SPDX-License-Identifier: Apache-2.0
/** The `quantization_config` of a config.json, as far as shapes do not say the same. */
import { type ConfigObject, objectAt, textOf } from "../structure/ModelConfig.ts"

/** What a model's configuration says of the form in which its weights are stored. */
export interface QuantizationConfig {
  /** As the config names it. */
  readonly method: string
  /** How the method arranges what it stores, as `gptq_v2` or `gemm`. */
  readonly format: string | undefined
  readonly bits: number | undefined
  /** Bits of all groups of layers, where a config has groups. */
  readonly widths?: ReadonlyArray<number>
  /** Elements of one group along the input. */
  readonly group: number | undefined
  /** Rows and columns of one block. */
  readonly block: readonly [number, number] | undefined
  /** Inputs are quantized in an order of their own. */
  readonly isReordered: boolean
}

const size = (value: unknown): number | undefined =>
  typeof value === "number" && Number.isSafeInteger(value) && value > 0 && value < 2 ** 31 ? value : undefined

const pair = (value: unknown): readonly [number, number] | undefined => {
  if (!Array.isArray(value) || value.length !== 2) return undefined
  const [rows, columns] = value.map(size)
  return rows === undefined || columns === undefined ? undefined : [rows, columns]
}

/** How the weights of each group of layers are stored, in configs that have groups. */
const groupWeights = (config: ConfigObject): ReadonlyArray<ConfigObject> => {
  const groups = objectAt(config, "config_groups") ?? {}
  return Object.keys(groups).flatMap((name): ReadonlyArray<ConfigObject> => {
    const weights = objectAt(objectAt(groups, name) ?? {}, "weights")
    return weights === undefined ? [] : [weights]
  })
}

/** Undefined for a model that is not quantized. */
export const quantizationOf = (config: ConfigObject | undefined): QuantizationConfig | undefined => {
  if (config === undefined) return undefined
  const text = textOf(config)
  const stated =
    objectAt(config, "quantization_config") ??
    objectAt(text, "quantization_config") ??
    objectAt(config, "compression_config")
  if (stated === undefined) return undefined
  const groups = groupWeights(stated)
  const weights = groups[0] ?? {}
  const widths = [...new Set(groups.flatMap(({ num_bits }) => size(num_bits) ?? []))]
  const method = stated.quant_method ?? stated.quant_algo
  const format = stated.checkpoint_format ?? stated.version ?? stated.packing_format ?? stated.format
  const order = weights.actorder ?? stated.desc_act
  return {
    method: typeof method === "string" ? method : "unnamed",
    format: typeof format === "string" ? format : undefined,
    bits: size(weights.num_bits) ?? size(stated.bits) ?? size(stated.w_bit),
    ...(widths.length > 1 ? { widths } : {}),
    group: size(weights.group_size) ?? size(stated.group_size) ?? size(stated.q_group_size),
    block: pair(stated.weight_block_size) ?? pair(weights.block_structure),
    isReordered: order === true || order === "group"
  }
}
