// SPDX-License-Identifier: Apache-2.0
/** OLMo Hybrid: full attention and gated delta nets in turns. Files call some norms other than the model does. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  column,
  convolution,
  decoder,
  mlp,
  norms,
  of,
  parameter,
  row,
  shaped,
  together,
  usualHeads,
  usualNorms,
  whole,
  wideNorms
} from "../parts.ts"

const owner = "linear_attn"

export const olmoHybrid: Family = {
  name: "olmo_hybrid",
  modelTypes: ["olmo_hybrid"],
  stacks: [
    decoder(
      [
        // Which norms a layer has follows from what it mixes with.
        ...norms("attention_layer_norm", "feedforward_layer_norm", "post_feedforward_layernorm", ...usualNorms),
        ...attention("self_attn"),
        ...wideNorms("self_attn"),
        ...together(
          "mixer",
          [
            column("mixer", `${owner}.q_proj`, "linearQ"),
            column("mixer", `${owner}.k_proj`, "linearK"),
            column("mixer", `${owner}.v_proj`, "linearV"),
            column("mixer", `${owner}.g_proj`, "linearV"),
            column("mixer", `${owner}.a_proj`, "linearHead"),
            column("mixer", `${owner}.b_proj`, "linearHead"),
            convolution(
              `${owner}.conv1d`,
              [
                ["keyHeads", "keyHeadDim", 2],
                ["valueHeads", "valueHeadDim"]
              ],
              "linearQ",
              "linearK",
              "linearV"
            ),
            // In files the convolution is in three, not always at the ends of queries and keys.
            ...shaped(
              [undefined, of(1), of("kernel")],
              whole("mixer", `${owner}.q_conv1d`, `${owner}.k_conv1d`, `${owner}.v_conv1d`)
            ),
            parameter("mixer", `${owner}.A_log`, "linearHead"),
            parameter("mixer", `${owner}.dt_bias`, "linearHead"),
            ...shaped([of("valueHeadDim")], norms(`${owner}.o_norm`)),
            row("mixer", `${owner}.o_proj`, "linearV")
          ],
          {
            [`${owner}.conv1d`]: "queries keys values",
            [`${owner}.q_conv1d`]: "queries",
            [`${owner}.k_conv1d`]: "keys",
            [`${owner}.v_conv1d`]: "values"
          }
        ),
        ...mlp("mlp")
      ],
      { norms: [] }
    )
  ],
  ends: usualHeads
}
