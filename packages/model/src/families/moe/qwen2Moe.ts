// SPDX-License-Identifier: Apache-2.0
/** Qwen 2 with experts: a shared expert with a gate of its own. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, listedExperts, mlp, router, stackedExperts, usualHeads } from "../parts.ts"

export const qwen2Moe: Family = {
  name: "qwen2_moe",
  modelTypes: ["qwen2_moe"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...mlp("mlp"),
      ...listedExperts("mlp"),
      ...stackedExperts("mlp"),
      ...mlp("mlp.shared_expert", "shared experts"),
      ...router("mlp.gate", "mlp.shared_expert_gate")
    ])
  ],
  ends: usualHeads
}
