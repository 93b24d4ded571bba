// SPDX-License-Identifier: Apache-2.0
/** LFM 2 with experts: short gated convolutions and attention in turns, dense layers first. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  column,
  decoder,
  headNorms,
  listedExperts,
  norms,
  router,
  row,
  stackedExperts,
  usualHeads,
  vector,
  wholeTensors
} from "../parts.ts"

export const lfm2Moe: Family = {
  name: "lfm2_moe",
  modelTypes: ["lfm2_moe"],
  stacks: [
    decoder(
      [
        ...norms("operator_norm", "ffn_norm"),
        ...attention("self_attn", "out_proj"),
        ...headNorms("self_attn", "q_layernorm", "k_layernorm"),
        // Two gates and the input, channel by channel.
        column("mixer", "conv.in_proj", "channel", "channel", "channel"),
        vector("mixer", "conv.conv", "channel"),
        row("mixer", "conv.out_proj", "channel"),
        column("mlp", "feed_forward.w1", "gate"),
        column("mlp", "feed_forward.w3", "up"),
        row("mlp", "feed_forward.w2", "down"),
        ...listedExperts("feed_forward", "w1", "w3", "w2"),
        ...stackedExperts("feed_forward"),
        ...router("feed_forward.gate"),
        ...wholeTensors("router", "feed_forward.expert_bias")
      ],
      { norm: "embedding_norm" }
    )
  ],
  ends: usualHeads
}
