// SPDX-License-Identifier: Apache-2.0
/** Qwen 2 with experts: a shared expert with a gate of its own. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  biased,
  decoder,
  listedExperts,
  mlp,
  router,
  sharedGate,
  stackedExperts,
  usualHeads
} from "../parts.ts"

export const qwen2Moe: Family = {
  name: "qwen2_moe",
  modelTypes: ["qwen2_moe"],
  stacks: [
    decoder([
      ...biased("never", biased(["qkv_bias"], attention("self_attn"), "q_proj", "k_proj", "v_proj"), "o_proj"),
      ...mlp("mlp"),
      ...listedExperts("mlp"),
      ...stackedExperts("mlp"),
      ...mlp("mlp.shared_expert", "shared experts"),
      ...router("mlp.gate"),
      ...sharedGate("mlp.shared_expert_gate")
    ])
  ],
  ends: usualHeads
}
