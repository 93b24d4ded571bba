// SPDX-License-Identifier: Apache-2.0
/** Jamba: Mamba-1 mixers or attention, dense or with experts. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  biased,
  column,
  columnOfLatent,
  convolution,
  decoder,
  listedExperts,
  mlp,
  norms,
  of,
  parameter,
  router,
  row,
  rowOfLatent,
  shaped,
  stackedExperts,
  together,
  usualHeads
} from "../parts.ts"

export const jamba: Family = {
  name: "jamba",
  modelTypes: ["jamba"],
  stacks: [
    decoder(
      [
        ...attention("self_attn"),
        ...together("mixer", [
          ...biased(
            ["mamba_proj_bias"],
            [column("mixer", "mamba.in_proj", "channel", "channel"), row("mixer", "mamba.out_proj", "channel")]
          ),
          ...biased(["mamba_conv_bias"], [convolution("mamba.conv1d", of("channels"), "channel")]),
          ...shaped(
            [[["stepRank"], ["ssmState", 2]], of("channels")],
            [rowOfLatent("mixer", "mamba.x_proj", "channel")]
          ),
          ...shaped(
            [of("channels"), of("stepRank")],
            biased("always", [columnOfLatent("mixer", "mamba.dt_proj", "channel")])
          ),
          ...shaped([of("channels"), of("ssmState")], [parameter("mixer", "mamba.A_log", "channel")]),
          parameter("mixer", "mamba.D", "channel"),
          ...shaped([of("ssmState")], norms("mamba.b_layernorm", "mamba.c_layernorm")),
          ...shaped([of("stepRank")], norms("mamba.dt_layernorm"))
        ]),
        ...mlp("feed_forward"),
        ...listedExperts("feed_forward"),
        ...stackedExperts("feed_forward"),
        ...router("feed_forward.router")
      ],
      { norm: "final_layernorm", norms: ["input_layernorm", "pre_ff_layernorm"] }
    )
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: usualHeads
}
