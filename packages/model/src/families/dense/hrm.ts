// SPDX-License-Identifier: Apache-2.0
/** HRM text: two stacks that are run in turns, with gates on attention and norms without weights. */
import type { Family, StackSpec } from "../../structure/Family.ts"
import {
  attention,
  column,
  embedding,
  first,
  mlp,
  packedMlp,
  row,
  together,
  usualHeads,
  wholeTensors
} from "../parts.ts"

const stack = (prefix: string): StackSpec => ({
  kind: "language",
  prefixes: [prefix],
  layers: "layers.{}.",
  modules: [
    // In files the gate, queries, keys and values are one, and so are gate and up of the MLP.
    ...together(
      "attention",
      [
        column("attention", "attn.gqkv_proj", "q", "q", "k", "v"),
        row("attention", "attn.o_proj", "o"),
        ...attention("self_attn"),
        column("attention", "self_attn.gate_proj", "q")
      ],
      {
        "attn.gqkv_proj": "gate q k v",
        "attn.o_proj": "o",
        "self_attn.q_proj": "q",
        "self_attn.k_proj": "k",
        "self_attn.v_proj": "v",
        "self_attn.o_proj": "o",
        "self_attn.gate_proj": "gate"
      }
    ),
    ...together("mlp", [...mlp("mlp"), ...packedMlp("mlp")], {
      "mlp.gate_proj": "gate",
      "mlp.up_proj": "up",
      "mlp.gate_up_proj": "gate up"
    })
  ],
  ends: [],
  needs: [["attention"], ["mlp"]]
})

export const hrm: Family = {
  name: "hrm_text",
  modelTypes: ["hrm_text"],
  stacks: [stack("model.H_module."), stack("model.L_module.")],
  fields: { layers: ["num_layers_per_stack"] },
  ends: [embedding("model.embed_tokens"), ...wholeTensors("embedding", "model.z_L_init").map(first), ...usualHeads]
}
