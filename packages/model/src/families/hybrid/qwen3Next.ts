// SPDX-License-Identifier: Apache-2.0
/** Qwen 3 Next and Qwen 3.5: full attention and gated delta nets in turns, dense or with experts. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  decoder,
  deltaNet,
  headNorms,
  last,
  layerNorms,
  listedExperts,
  mlp,
  norms,
  router,
  shaped,
  sharedGate,
  stackedExperts,
  usualHeads,
  usualNorms,
  whole
} from "../parts.ts"

// Queries come with gates of their own size.
const layer = [
  ...shaped([[["heads", "headDim", 2]], [["hidden"]]], attention("self_attn"), "q_proj"),
  ...headNorms("self_attn"),
  ...deltaNet("linear_attn"),
  ...mlp("mlp"),
  ...listedExperts("mlp"),
  ...stackedExperts("mlp"),
  ...mlp("mlp.shared_expert", "shared experts"),
  ...router("mlp.gate"),
  ...sharedGate("mlp.shared_expert_gate")
]

const stacks: Family["stacks"] = [
  decoder(layer),
  {
    kind: "mtp",
    prefixes: ["mtp.", "model.mtp."],
    layers: "layers.{}.",
    modules: [...layerNorms(...usualNorms), ...layer],
    ends: [...norms("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), ...whole("projection", "fc")].map(last)
  }
]

export const qwen3Next: Family = { name: "qwen3_next", modelTypes: ["qwen3_next"], stacks, ends: usualHeads }

export const qwen35: Family = {
  name: "qwen3_5",
  modelTypes: ["qwen3_5", "qwen3_5_text"],
  stacks,
  towers: [{ kind: "vision", prefixes: ["visual.", "model.visual."] }],
  ends: usualHeads
}

export const qwen35Moe: Family = { ...qwen35, name: "qwen3_5_moe", modelTypes: ["qwen3_5_moe", "qwen3_5_moe_text"] }
