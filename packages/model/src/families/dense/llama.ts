// SPDX-License-Identifier: Apache-2.0
/** Grouped-query attention and a gated MLP, as Llama names them; most dense decoders have this shape. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, mlp, usualHeads } from "../parts.ts"

export const llama: Family = {
  name: "llama",
  modelTypes: [
    "llama",
    "mistral",
    "ministral",
    "ministral3",
    "granite",
    "smollm3",
    "internlm3",
    "seed_oss",
    "ernie4_5",
    "cohere",
    "cohere2"
  ],
  stacks: [decoder([...attention("self_attn"), ...mlp("mlp")])],
  lacks: { cohere: ["post_attention_layernorm"], cohere2: ["post_attention_layernorm"] },
  isTied: ["smollm3", "ernie4_5", "cohere", "cohere2"],
  ends: usualHeads
}
