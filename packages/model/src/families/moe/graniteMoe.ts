// SPDX-License-Identifier: Apache-2.0
/** Granite with experts: stacks in modules, gate and up together, with or without a shared MLP. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, packedMlp, router, stackedExperts, stackedModules, usualHeads } from "../parts.ts"

export const graniteMoe: Family = {
  name: "granitemoe",
  modelTypes: ["granitemoe", "granitemoeshared"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...stackedModules("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
      ...stackedExperts("block_sparse_moe"),
      ...stackedExperts("mlp"),
      ...packedMlp("shared_mlp", "shared experts", "input_linear", "output_linear"),
      ...router("block_sparse_moe.router.layer", "block_sparse_moe.router", "mlp.router", "mlp.gate")
    ])
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: usualHeads
}
