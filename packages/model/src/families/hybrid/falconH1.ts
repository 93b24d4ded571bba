// SPDX-License-Identifier: Apache-2.0
/** Falcon H1: attention and a Mamba-2 mixer side by side in every layer. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, freely, mamba2, mlp, usualHeads } from "../parts.ts"

/** The norm behind a mixer is a choice of the config. */
const mixer = mamba2("mamba").map((spec) => (spec.path === "mamba.norm" ? freely([spec])[0]! : spec))

export const falconH1: Family = {
  name: "falcon_h1",
  modelTypes: ["falcon_h1"],
  stacks: [
    decoder([...attention("self_attn"), ...mixer, ...mlp("feed_forward")], {
      norm: "final_layernorm",
      norms: ["input_layernorm", "pre_ff_layernorm"],
      needs: [["layer"], ["attention"], ["mixer"], ["mlp"]]
    })
  ],
  ends: usualHeads
}
