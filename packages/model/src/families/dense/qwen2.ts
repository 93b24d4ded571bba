// SPDX-License-Identifier: Apache-2.0
/** Qwen 2 and 2.5: biases on queries, keys and values, and in its VL models a vision tower. */
import type { Family } from "../../structure/Family.ts"
import { attention, biased, decoder, mlp, usualHeads } from "../parts.ts"

/** Queries, keys and values have biases whatever a config says. */
const qwen2Attention = biased("never", biased("always", attention("self_attn"), "q_proj", "k_proj", "v_proj"), "o_proj")

export const qwen2: Family = {
  name: "qwen2",
  modelTypes: ["qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
  stacks: [decoder([...qwen2Attention, ...biased("never", mlp("mlp"))])],
  towers: [{ kind: "vision", prefixes: ["visual.", "model.visual."] }],
  ends: usualHeads
}
