// SPDX-License-Identifier: Apache-2.0
/**
 * The `quantization_config` that says to engines how weights are stored, in the words of whoever reads them.
 *
 * Sources: transformers' FineGrainedFP8Config and Mxfp4Config, the schemas of compressed-tensors (config_groups), and
 * ModelOpt's exported configs, all public.
 */
import type { QuantizeChoice } from "./choice.ts"

const activations8 = { num_bits: 8, type: "float", symmetric: true, dynamic: true }

/** Weights and activations of compressed-tensors, and the name of the format. */
const groupOf = ({ block, form }: QuantizeChoice) => {
  const weights = { type: "float", symmetric: true, dynamic: false }
  if (form === "nvfp4") {
    return {
      format: "nvfp4-pack-quantized",
      weights: { ...weights, num_bits: 4, strategy: "tensor_group", group_size: 16 },
      activations: null
    }
  }
  if (form === "mxfp4") {
    return {
      format: "mxfp4-pack-quantized",
      weights: { ...weights, num_bits: 4, strategy: "group", group_size: 32 },
      activations: null
    }
  }
  const [rows, columns] = block
  if (rows === 0) {
    return {
      format: "float-quantized",
      weights: { ...weights, num_bits: 8, strategy: "tensor" },
      activations: { ...activations8, strategy: "tensor" }
    }
  }
  if (columns === 0) {
    return {
      format: "float-quantized",
      weights: { ...weights, num_bits: 8, strategy: "channel" },
      activations: { ...activations8, strategy: "token" }
    }
  }
  return {
    format: "float-quantized",
    weights: { ...weights, num_bits: 8, strategy: "block", block_structure: [rows, columns] },
    activations: { ...activations8, strategy: "group", group_size: columns }
  }
}

/** What config.json says of weights that were quantized; `kept` are modules that were not. */
export const quantizationConfigOf = (
  choice: QuantizeChoice,
  kept: ReadonlyArray<string>,
  isBlocks: boolean
): Readonly<Record<string, unknown>> => {
  if (isBlocks) return { quant_method: "mxfp4", modules_to_not_convert: [...kept, "model.embed_tokens"] }
  if (choice.storedAs === "fp8") {
    return {
      quant_method: "fp8",
      fmt: "e4m3",
      activation_scheme: "dynamic",
      weight_block_size: [...choice.block],
      ...(/ue8m0|pow2/.test(choice.rule) ? { scale_fmt: "ue8m0" } : {}),
      modules_to_not_convert: [...kept]
    }
  }
  if (choice.storedAs === "modelopt") {
    return {
      quant_method: "modelopt",
      quant_algo: "NVFP4",
      kv_cache_quant_algo: null,
      group_size: 16,
      ignore: [...kept]
    }
  }
  const { activations, format, weights } = groupOf(choice)
  return {
    quant_method: "compressed-tensors",
    format,
    quantization_status: "compressed",
    global_compression_ratio: null,
    kv_cache_scheme: null,
    ignore: [...kept],
    config_groups: {
      group_0: { targets: ["Linear"], weights, input_activations: activations, output_activations: null, format }
    }
  }
}
