// SPDX-License-Identifier: Apache-2.0
/** Bamba: attention or a Mamba-2 mixer in each layer. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, mamba2, mlp, usualHeads } from "../parts.ts"

export const bamba: Family = {
  name: "bamba",
  modelTypes: ["bamba"],
  stacks: [
    decoder([...attention("self_attn"), ...mamba2("mamba"), ...mlp("feed_forward")], {
      norm: "final_layernorm",
      norms: ["input_layernorm", "pre_ff_layernorm"]
    })
  ],
  ends: usualHeads
}
