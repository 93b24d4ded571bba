// SPDX-License-Identifier: Apache-2.0
/** DeepSeek V2, V3 and V3.2 and what follows them: latent attention, shared experts, layers that predict further tokens. */
import type { Family } from "../../structure/Family.ts"
import {
  decoder,
  extraLayer,
  latentAttention,
  listedExperts,
  mlp,
  router,
  stackedExperts,
  usualHeads,
  whole
} from "../parts.ts"

const layer = [
  ...latentAttention("self_attn"),
  ...mlp("mlp"),
  ...listedExperts("mlp"),
  ...stackedExperts("mlp"),
  ...mlp("mlp.shared_experts", "shared experts"),
  ...router("mlp.gate"),
  ...extraLayer
]

export const deepseek: Family = {
  name: "deepseek_v3",
  modelTypes: ["deepseek_v3", "deepseek_v2", "kimi_k2"],
  stacks: [decoder(layer)],
  hasExtraLayers: true,
  ends: usualHeads
}

/** With an indexer that chooses what a query attends to; every rank holds it whole. */
export const deepseekSparse: Family = {
  name: "deepseek_v32",
  modelTypes: ["deepseek_v32", "glm_moe_dsa"],
  stacks: [
    decoder([
      ...layer,
      ...whole("indexer", ...["wq_b", "wk", "k_norm", "weights_proj"].map((name) => `self_attn.indexer.${name}`))
    ])
  ],
  hasExtraLayers: true,
  ends: usualHeads
}
