// SPDX-License-Identifier: Apache-2.0
/** MiniMax M2: norms over all queries and all keys, cut with them, and experts as Mixtral names them. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  decoder,
  listedExperts,
  of,
  router,
  shaped,
  stackedExperts,
  together,
  usualHeads,
  vector,
  wholeTensors
} from "../parts.ts"

export const minimax: Family = {
  name: "minimax_m2",
  modelTypes: ["minimax_m2"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...together("attention", [
        vector("attention", "self_attn.q_norm", "q"),
        vector("attention", "self_attn.k_norm", "k")
      ]),
      ...listedExperts("block_sparse_moe", "w1", "w3", "w2"),
      ...router("block_sparse_moe.gate", "mlp.gate"),
      ...together(
        "experts",
        shaped(
          [of("experts")],
          wholeTensors("router", "block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias")
        ),
        {
          "block_sparse_moe.e_score_correction_bias": "correction",
          "mlp.e_score_correction_bias": "correction"
        }
      ),
      ...stackedExperts("mlp")
    ])
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: usualHeads
}
