// SPDX-License-Identifier: Apache-2.0
/** OLMo 2 and 3: norms over all queries and all keys, which every rank holds whole, and norms behind the blocks. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, mlp, usualHeads, wideNorms } from "../parts.ts"

export const olmo2: Family = {
  name: "olmo2",
  modelTypes: ["olmo2", "olmo3"],
  stacks: [
    decoder([...attention("self_attn"), ...wideNorms("self_attn"), ...mlp("mlp")], {
      norms: ["post_attention_layernorm", "post_feedforward_layernorm"]
    })
  ],
  ends: usualHeads
}
