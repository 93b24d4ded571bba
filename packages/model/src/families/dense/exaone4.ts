// SPDX-License-Identifier: Apache-2.0
/** EXAONE 4: norms inside every head, and norms behind the blocks. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, headNorms, mlp, usualHeads } from "../parts.ts"

export const exaone4: Family = {
  name: "exaone4",
  modelTypes: ["exaone4"],
  stacks: [
    decoder([...attention("self_attn"), ...headNorms("self_attn"), ...mlp("mlp")], {
      norms: ["post_attention_layernorm", "post_feedforward_layernorm"]
    })
  ],
  ends: usualHeads
}
