// SPDX-License-Identifier: Apache-2.0
/** The first Qwen: as many keys as queries, packed in one projection, under names of its own. */
import type { Family } from "../../structure/Family.ts"
import { column, embedding, finalNorm, first, head, layerNorms, row, shaped, together, wholeTensors } from "../parts.ts"

/** The config counts both halves of the gated MLP. */
const halfWidth = [["width", 0.5]] as const

export const qwen: Family = {
  name: "qwen",
  modelTypes: ["qwen"],
  stacks: [
    {
      kind: "language",
      prefixes: ["transformer."],
      layers: "h.{}.",
      modules: [
        ...together("attention", [
          column("attention", "attn.c_attn", "q", "k", "v"),
          row("attention", "attn.c_proj", "o")
        ]),
        ...together("mlp", [
          ...shaped([halfWidth, [["hidden"]]], [column("mlp", "mlp.w1", "gate"), column("mlp", "mlp.w2", "up")]),
          ...shaped([[["hidden"]], halfWidth], [row("mlp", "mlp.c_proj", "down")])
        ]),
        ...wholeTensors("rotary", "attn.rotary_emb.inv_freq"),
        ...layerNorms("ln_1", "ln_2")
      ],
      ends: [embedding("wte"), finalNorm("ln_f"), ...wholeTensors("rotary", "rotary_emb.inv_freq").map(first)],
      needs: [["layer"], ["attention"], ["mlp"]]
    }
  ],
  ends: [head("lm_head")]
}
