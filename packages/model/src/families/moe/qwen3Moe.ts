// SPDX-License-Identifier: Apache-2.0
/** Qwen 3 with experts, one by one or in stacks; its VL models stack them input first. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  decoder,
  headNorms,
  listedExperts,
  mlp,
  router,
  stackedExperts,
  stackedInputFirst,
  usualHeads
} from "../parts.ts"

const shared = [
  ...attention("self_attn"),
  ...headNorms("self_attn"),
  ...mlp("mlp"),
  ...listedExperts("mlp"),
  ...router("mlp.gate")
]

export const qwen3Moe: Family = {
  name: "qwen3_moe",
  modelTypes: ["qwen3_moe"],
  stacks: [decoder([...shared, ...stackedExperts("mlp")])],
  ends: usualHeads
}

export const qwen3VlMoe: Family = {
  name: "qwen3_vl_moe",
  modelTypes: ["qwen3_vl_moe", "qwen3_vl_moe_text"],
  stacks: [decoder([...shared, ...stackedInputFirst("mlp")])],
  towers: [{ kind: "vision", prefixes: ["visual.", "model.visual."] }],
  ends: usualHeads
}
