// SPDX-License-Identifier: Apache-2.0
/** Hunyuan: norms inside every head, dense or with experts and a shared MLP. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  decoder,
  freely,
  listedExperts,
  mlp,
  optionalHeadNorms,
  router,
  stackedExperts,
  usualHeads
} from "../parts.ts"

// Layers that share keys and values have none of their own.
const attentionModules = [
  ...freely(attention("self_attn")),
  ...optionalHeadNorms("self_attn", "query_layernorm", "key_layernorm"),
  ...mlp("mlp")
]

const needs = [["layer"], ["mlp", "experts"]]

export const hunyuan: Family = {
  name: "hunyuan_v1_dense",
  modelTypes: ["hunyuan_v1_dense"],
  stacks: [decoder(attentionModules, { needs })],
  ends: usualHeads
}

export const hunyuanMoe: Family = {
  name: "hunyuan_v1_moe",
  modelTypes: ["hunyuan_v1_moe"],
  stacks: [
    decoder(
      [
        ...attentionModules,
        ...listedExperts("mlp"),
        ...stackedExperts("mlp"),
        ...mlp("mlp.shared_mlp", "shared experts"),
        ...router("mlp.gate.wg")
      ],
      { needs }
    )
  ],
  ends: usualHeads
}
