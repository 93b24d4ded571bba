// SPDX-License-Identifier: Apache-2.0
/** GLM 4: gate and up in one projection, and norms behind attention and MLP. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, norms, packedMlp, usualHeads } from "../parts.ts"

export const glm4: Family = {
  name: "glm4",
  modelTypes: ["glm", "glm4"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...packedMlp("mlp"),
      ...norms("post_self_attn_layernorm", "post_mlp_layernorm")
    ])
  ],
  ends: usualHeads
}
