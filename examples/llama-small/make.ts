// SPDX-License-Identifier: Apache-2.0
/**
 * Writes a llama checkpoint in miniature: the family's real names and structure, small uneven sizes, seeded bits.
 *
 * Usage: node make.ts FOLDER
 */
import { mkdirSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import type { DType } from "@tensorferry/core/base/DType"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import * as Effect from "effect/Effect"

const layers = 4
const hidden = 64
const intermediate = 172
const heads = 4
const kvHeads = 2
const headSize = hidden / heads
const vocabulary = 250

const shapes: Array<readonly [string, Shape]> = [["model.embed_tokens.weight", [vocabulary, hidden]]]
for (let layer = 0; layer < layers; layer++) {
  const prefix = `model.layers.${layer}`
  shapes.push(
    [`${prefix}.self_attn.q_proj.weight`, [heads * headSize, hidden]],
    [`${prefix}.self_attn.k_proj.weight`, [kvHeads * headSize, hidden]],
    [`${prefix}.self_attn.v_proj.weight`, [kvHeads * headSize, hidden]],
    [`${prefix}.self_attn.o_proj.weight`, [hidden, heads * headSize]],
    [`${prefix}.mlp.gate_proj.weight`, [intermediate, hidden]],
    [`${prefix}.mlp.up_proj.weight`, [intermediate, hidden]],
    [`${prefix}.mlp.down_proj.weight`, [hidden, intermediate]],
    [`${prefix}.input_layernorm.weight`, [hidden]],
    [`${prefix}.post_attention_layernorm.weight`, [hidden]]
  )
}
shapes.push(["model.norm.weight", [hidden]], ["lm_head.weight", [vocabulary, hidden]])

let state = 0x9e3779b9
/** xorshift32: every run writes the same bits. */
const nextByte = (): number => {
  state ^= state << 13
  state ^= state >>> 17
  state ^= state << 5
  return state & 0xff
}

const dtype: DType = "bfloat16"
const folder = process.argv[2]
if (folder === undefined) {
  console.error("usage: node make.ts FOLDER")
  process.exit(2)
}
mkdirSync(folder, { recursive: true })
const tensors = shapes.map(([name, shape]) => ({
  name,
  dtype,
  shape,
  data: Uint8Array.from({ length: byteLengthOf(dtype, elementCount(shape)) }, nextByte)
}))
await Effect.runPromise(writeSafetensors(path.join(folder, "model.safetensors"), tensors, new Map([["format", "pt"]])))
const config = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  hidden_size: hidden,
  intermediate_size: intermediate,
  num_attention_heads: heads,
  num_hidden_layers: layers,
  num_key_value_heads: kvHeads,
  tie_word_embeddings: false,
  vocab_size: vocabulary
}
writeFileSync(path.join(folder, "config.json"), `${JSON.stringify(config, null, 2)}\n`)
