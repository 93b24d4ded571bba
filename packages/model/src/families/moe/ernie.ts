// SPDX-License-Identifier: Apache-2.0
/** ERNIE 4.5 with experts: dense layers first, shared experts, blocks that predict further tokens. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  decoder,
  last,
  listedExperts,
  mlp,
  norms,
  router,
  stackedExperts,
  usualHeads,
  usualPrefixes,
  whole
} from "../parts.ts"

const layer = [
  ...attention("self_attn"),
  ...mlp("mlp"),
  ...listedExperts("mlp"),
  ...stackedExperts("mlp"),
  ...mlp("mlp.shared_experts", "shared experts"),
  ...router("mlp.gate", "mlp.moe_statics")
]

export const ernie: Family = {
  name: "ernie4_5_moe",
  modelTypes: ["ernie4_5_moe"],
  stacks: [
    decoder(layer),
    {
      kind: "mtp",
      prefixes: usualPrefixes,
      layers: "mtp_block.{}.",
      modules: [...norms("input_layernorm", "post_attention_layernorm"), ...layer],
      ends: [...norms("mtp_emb_norm.{}", "mtp_hidden_norm.{}"), ...whole("projection", "mtp_linear_proj.{}")].map(last)
    }
  ],
  ends: usualHeads,
  isTied: true
}
