// SPDX-License-Identifier: Apache-2.0
/** Falcon H1: attention and a Mamba-2 mixer side by side in every layer. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, mamba2, mlp, norms, usualHeads } from "../parts.ts"

export const falconH1: Family = {
  name: "falcon_h1",
  modelTypes: ["falcon_h1"],
  stacks: [
    decoder([...attention("self_attn"), ...mamba2("mamba"), ...mlp("feed_forward"), ...norms("pre_ff_layernorm")], {
      norm: "final_layernorm"
    })
  ],
  ends: usualHeads
}
