// SPDX-License-Identifier: Apache-2.0
/** Hunyuan: norms inside every head, dense or with experts and a shared MLP. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, headNorms, listedExperts, mlp, router, stackedExperts, usualHeads } from "../parts.ts"

const attentionModules = [
  ...attention("self_attn"),
  ...headNorms("self_attn", "query_layernorm", "key_layernorm"),
  ...mlp("mlp")
]

export const hunyuan: Family = {
  name: "hunyuan_v1_dense",
  modelTypes: ["hunyuan_v1_dense"],
  stacks: [decoder(attentionModules)],
  ends: usualHeads
}

export const hunyuanMoe: Family = {
  name: "hunyuan_v1_moe",
  modelTypes: ["hunyuan_v1_moe"],
  stacks: [
    decoder([
      ...attentionModules,
      ...listedExperts("mlp"),
      ...stackedExperts("mlp"),
      ...mlp("mlp.shared_mlp", "shared experts"),
      ...router("mlp.gate.wg")
    ])
  ],
  ends: usualHeads
}
