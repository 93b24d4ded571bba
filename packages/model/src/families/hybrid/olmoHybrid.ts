// SPDX-License-Identifier: Apache-2.0
/** OLMo Hybrid: full attention and gated delta nets in turns. Files call some norms other than the model does. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  column,
  decoder,
  headNorms,
  mlp,
  norms,
  parameter,
  row,
  usualHeads,
  vector,
  whole
} from "../parts.ts"

const owner = "linear_attn"

export const olmoHybrid: Family = {
  name: "olmo_hybrid",
  modelTypes: ["olmo_hybrid"],
  stacks: [
    decoder([
      ...norms("attention_layer_norm", "feedforward_layer_norm", "post_feedforward_layernorm"),
      ...attention("self_attn"),
      ...headNorms("self_attn"),
      column("mixer", `${owner}.q_proj`, "linearQ"),
      column("mixer", `${owner}.k_proj`, "linearK"),
      column("mixer", `${owner}.v_proj`, "linearV"),
      column("mixer", `${owner}.g_proj`, "linearV"),
      column("mixer", `${owner}.a_proj`, "linearHead"),
      column("mixer", `${owner}.b_proj`, "linearHead"),
      vector("mixer", `${owner}.conv1d`, "linearQ", "linearK", "linearV"),
      // In files the convolution is in three, not always at the ends of queries and keys.
      ...whole("mixer", `${owner}.q_conv1d`, `${owner}.k_conv1d`, `${owner}.v_conv1d`),
      parameter("mixer", `${owner}.A_log`, "linearHead"),
      parameter("mixer", `${owner}.dt_bias`, "linearHead"),
      ...norms(`${owner}.o_norm`),
      row("mixer", `${owner}.o_proj`, "linearV"),
      ...mlp("mlp")
    ])
  ],
  ends: usualHeads
}
