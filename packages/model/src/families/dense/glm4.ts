// SPDX-License-Identifier: Apache-2.0
/** GLM 4: gate and up in one projection, and norms behind attention and MLP. */
import type { Family } from "../../structure/Family.ts"
import { attention, biased, decoder, packedMlp, usualHeads, usualNorms } from "../parts.ts"

const sandwich = ["post_self_attn_layernorm", "post_mlp_layernorm"]

export const glm4: Family = {
  name: "glm4",
  modelTypes: ["glm", "glm4"],
  stacks: [
    decoder([...biased("never", attention("self_attn"), "o_proj"), ...packedMlp("mlp")], {
      norms: [...usualNorms, ...sandwich]
    })
  ],
  lacks: { glm: sandwich },
  ends: usualHeads
}
