// SPDX-License-Identifier: Apache-2.0
/** GLM 4.5 and 4.6: grouped-query attention, shared experts, layers that predict further tokens. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  decoder,
  extraLayer,
  headNorms,
  listedExperts,
  mlp,
  router,
  stackedExperts,
  usualHeads
} from "../parts.ts"

export const glm4Moe: Family = {
  name: "glm4_moe",
  modelTypes: ["glm4_moe"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...headNorms("self_attn"),
      ...mlp("mlp"),
      ...listedExperts("mlp"),
      ...stackedExperts("mlp"),
      ...mlp("mlp.shared_experts", "shared experts"),
      ...router("mlp.gate"),
      ...extraLayer
    ])
  ],
  hasExtraLayers: true,
  ends: usualHeads
}
