// SPDX-License-Identifier: Apache-2.0
/** LFM 2 with experts: short gated convolutions and attention in turns, dense layers first. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  biased,
  column,
  convolution,
  decoder,
  headNorms,
  listedExperts,
  of,
  router,
  row,
  shaped,
  stackedExperts,
  together,
  usualHeads,
  wholeTensors
} from "../parts.ts"

export const lfm2Moe: Family = {
  name: "lfm2_moe",
  modelTypes: ["lfm2_moe"],
  stacks: [
    decoder(
      [
        ...attention("self_attn", "out_proj"),
        ...headNorms("self_attn", "q_layernorm", "k_layernorm"),
        // Two gates and the input, channel by channel.
        ...together(
          "mixer",
          biased(
            ["conv_bias"],
            [
              ...shaped(
                [of("hidden", 3), of("hidden")],
                [column("mixer", "conv.in_proj", "channel", "channel", "channel")]
              ),
              convolution("conv.conv", of("hidden"), "channel"),
              ...shaped([of("hidden"), of("hidden")], [row("mixer", "conv.out_proj", "channel")])
            ]
          )
        ),
        ...together("mlp", [
          column("mlp", "feed_forward.w1", "gate"),
          column("mlp", "feed_forward.w3", "up"),
          row("mlp", "feed_forward.w2", "down")
        ]),
        ...listedExperts("feed_forward", "w1", "w3", "w2"),
        ...stackedExperts("feed_forward"),
        ...router("feed_forward.gate"),
        ...together("experts", shaped([of("experts")], wholeTensors("router", "feed_forward.expert_bias")))
      ],
      { norm: "embedding_norm", norms: ["operator_norm", "ffn_norm"] }
    )
  ],
  fields: { kernel: ["conv_L_cache"] },
  isTied: true,
  ends: usualHeads
}
