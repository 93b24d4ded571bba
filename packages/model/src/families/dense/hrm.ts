// SPDX-License-Identifier: Apache-2.0
/** HRM text: two stacks that are run in turns, with gates on attention and norms without weights. */
import type { Family, StackSpec } from "../../structure/Family.ts"
import { attention, column, embedding, first, mlp, packedMlp, row, usualHeads, wholeTensors } from "../parts.ts"

const stack = (prefix: string): StackSpec => ({
  kind: "language",
  prefixes: [prefix],
  layers: "layers.{}.",
  modules: [
    // In files the gate, queries, keys and values are one, and so are gate and up of the MLP.
    column("attention", "attn.gqkv_proj", "q", "q", "k", "v"),
    row("attention", "attn.o_proj", "o"),
    ...attention("self_attn"),
    column("attention", "self_attn.gate_proj", "q"),
    ...mlp("mlp"),
    ...packedMlp("mlp")
  ],
  ends: []
})

export const hrm: Family = {
  name: "hrm_text",
  modelTypes: ["hrm_text"],
  stacks: [stack("model.H_module."), stack("model.L_module.")],
  ends: [embedding("model.embed_tokens"), ...wholeTensors("embedding", "model.z_L_init").map(first), ...usualHeads]
}
