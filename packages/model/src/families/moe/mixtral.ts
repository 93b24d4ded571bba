// SPDX-License-Identifier: Apache-2.0
/** Mixtral: experts whose gate, up and down are called w1, w3 and w2. */
import type { Family } from "../../structure/Family.ts"
import { attention, biased, decoder, last, listedExperts, router, stackedExperts, usualHeads } from "../parts.ts"

export const mixtral: Family = {
  name: "mixtral",
  modelTypes: ["mixtral", "phimoe"],
  stacks: [
    decoder(
      [
        ...attention("self_attn"),
        ...listedExperts("block_sparse_moe", "w1", "w3", "w2"),
        ...router("block_sparse_moe.gate", "mlp.gate", "mlp.router"),
        ...stackedExperts("mlp")
      ],
      // Phi has biases there, which no field says.
      { normBias: [] }
    )
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: biased(["lm_head_bias"], usualHeads).map(last)
}
