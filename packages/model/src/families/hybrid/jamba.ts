// SPDX-License-Identifier: Apache-2.0
/** Jamba: Mamba-1 mixers or attention, dense or with experts. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  column,
  columnOfLatent,
  decoder,
  listedExperts,
  mlp,
  norms,
  parameter,
  router,
  row,
  rowOfLatent,
  stackedExperts,
  usualHeads,
  vector
} from "../parts.ts"

export const jamba: Family = {
  name: "jamba",
  modelTypes: ["jamba"],
  stacks: [
    decoder(
      [
        ...attention("self_attn"),
        column("mixer", "mamba.in_proj", "channel", "channel"),
        vector("mixer", "mamba.conv1d", "channel"),
        rowOfLatent("mixer", "mamba.x_proj", "channel"),
        columnOfLatent("mixer", "mamba.dt_proj", "channel"),
        parameter("mixer", "mamba.A_log", "channel"),
        parameter("mixer", "mamba.D", "channel"),
        row("mixer", "mamba.out_proj", "channel"),
        ...norms("mamba.b_layernorm", "mamba.c_layernorm", "mamba.dt_layernorm", "pre_ff_layernorm"),
        ...mlp("feed_forward"),
        ...listedExperts("feed_forward"),
        ...stackedExperts("feed_forward"),
        ...router("feed_forward.router")
      ],
      { norm: "final_layernorm" }
    )
  ],
  ends: usualHeads
}
