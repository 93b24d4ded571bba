// SPDX-License-Identifier: Apache-2.0
/** Hunyuan: norms inside every head, dense or with experts and a shared MLP. */
import type { Family } from "../../structure/Family.ts"
import {
  attentionSharingKeys,
  decoder,
  listedExperts,
  mlp,
  optionalHeadNorms,
  router,
  stackedExperts,
  usualHeads
} from "../parts.ts"

const attentionModules = [
  ...attentionSharingKeys("self_attn"),
  ...optionalHeadNorms("self_attn", "query_layernorm", "key_layernorm"),
  ...mlp("mlp")
]

const needs = [["layer"], ["attention"], ["mlp", "experts"]]

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
