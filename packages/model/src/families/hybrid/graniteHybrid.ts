// SPDX-License-Identifier: Apache-2.0
/** Granite 4: Mamba-2 mixers or attention, stacks of experts beside a shared MLP. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, mamba2, packedMlp, router, stackedExperts, stackedModules, usualHeads } from "../parts.ts"

export const graniteHybrid: Family = {
  name: "granitemoehybrid",
  modelTypes: ["granitemoehybrid"],
  stacks: [
    decoder(
      [
        ...attention("self_attn"),
        ...mamba2("mamba"),
        ...stackedModules("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
        ...stackedExperts("block_sparse_moe"),
        ...packedMlp("shared_mlp", "shared experts", "input_linear", "output_linear"),
        ...router("block_sparse_moe.router.layer", "block_sparse_moe.router")
      ],
      { needs: [["layer"], ["attention", "mixer"], ["experts", "shared experts"]] }
    )
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: usualHeads
}
