// SPDX-License-Identifier: Apache-2.0
/** DeepSeek V2, V3 and V3.2 and what follows them: latent attention, shared experts, layers that predict further tokens. */
import type { Family } from "../../structure/Family.ts"
import {
  biased,
  correctedRouter,
  decoder,
  extraLayer,
  latentAttention,
  listedExperts,
  mlp,
  of,
  shaped,
  stackedExperts,
  together,
  usualHeads,
  whole
} from "../parts.ts"

const layer = [
  ...latentAttention("self_attn"),
  ...mlp("mlp"),
  ...listedExperts("mlp"),
  ...stackedExperts("mlp"),
  ...mlp("mlp.shared_experts", "shared experts"),
  ...correctedRouter("mlp.gate"),
  ...extraLayer
]

/** Layers may share one. */
const indexer = (owner: string) =>
  together("indexer", [
    ...shaped([of("indexHeads", "indexHeadDim"), of("queryRank")], whole("indexer", `${owner}.wq_b`)),
    ...shaped([of("indexHeadDim"), of("hidden")], whole("indexer", `${owner}.wk`)),
    ...biased("always", shaped([of("indexHeadDim")], whole("indexer", `${owner}.k_norm`))),
    ...shaped([of("indexHeads"), of("hidden")], whole("indexer", `${owner}.weights_proj`))
  ])

export const deepseek: Family = {
  name: "deepseek_v3",
  modelTypes: ["deepseek_v3", "deepseek_v2", "kimi_k2"],
  stacks: [decoder(layer)],
  hasExtraLayers: true,
  lacks: { deepseek_v2: ["mlp.gate.e_score_correction_bias"] },
  ends: usualHeads
}

/** With an indexer that chooses what a query attends to; every rank holds it whole. */
export const deepseekSparse: Family = {
  name: "deepseek_v32",
  modelTypes: ["deepseek_v32", "glm_moe_dsa"],
  stacks: [decoder([...layer, ...indexer("self_attn.indexer")])],
  hasExtraLayers: true,
  ends: usualHeads
}
