// SPDX-License-Identifier: Apache-2.0
/** GLM 4.5 and 4.6: grouped-query attention, shared experts, layers that predict further tokens. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  biased,
  correctedRouter,
  decoder,
  extraLayer,
  listedExperts,
  mlp,
  optionalHeadNorms,
  stackedExperts,
  usualHeads
} from "../parts.ts"

export const glm4Moe: Family = {
  name: "glm4_moe",
  modelTypes: ["glm4_moe"],
  stacks: [
    decoder([
      ...biased("never", attention("self_attn"), "o_proj"),
      ...optionalHeadNorms("self_attn"),
      ...mlp("mlp"),
      ...listedExperts("mlp"),
      ...stackedExperts("mlp"),
      ...mlp("mlp.shared_experts", "shared experts"),
      ...correctedRouter("mlp.gate"),
      ...extraLayer
    ])
  ],
  hasExtraLayers: true,
  ends: usualHeads
}
