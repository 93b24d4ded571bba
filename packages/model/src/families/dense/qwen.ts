// SPDX-License-Identifier: Apache-2.0
/** The first Qwen: as many keys as queries, packed in one projection, under names of its own. */
import type { Family } from "../../structure/Family.ts"
import { column, embedding, first, head, last, norms, row, wholeTensors } from "../parts.ts"

export const qwen: Family = {
  name: "qwen",
  modelTypes: ["qwen"],
  stacks: [
    {
      kind: "language",
      prefixes: ["transformer."],
      layers: "h.{}.",
      modules: [
        column("attention", "attn.c_attn", "q", "k", "v"),
        row("attention", "attn.c_proj", "o"),
        column("mlp", "mlp.w1", "gate"),
        column("mlp", "mlp.w2", "up"),
        row("mlp", "mlp.c_proj", "down"),
        ...wholeTensors("rotary", "attn.rotary_emb.inv_freq"),
        ...norms("ln_1", "ln_2")
      ],
      ends: [embedding("wte"), ...norms("ln_f").map(last), ...wholeTensors("rotary", "rotary_emb.inv_freq").map(first)]
    }
  ],
  ends: [head("lm_head")]
}
