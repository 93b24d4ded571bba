// SPDX-License-Identifier: Apache-2.0
/** Mamba 2 without attention. */
import type { Family } from "../../structure/Family.ts"
import { embedding, finalNorm, head, layerNorms, mamba2 as mixer } from "../parts.ts"

export const mamba2: Family = {
  name: "mamba2",
  modelTypes: ["mamba2"],
  stacks: [
    {
      kind: "language",
      prefixes: ["backbone.", "model."],
      layers: "layers.{}.",
      modules: [...mixer("mixer"), ...layerNorms("norm")],
      ends: [embedding("embeddings"), embedding("embedding"), finalNorm("norm_f")],
      needs: [["layer"], ["mixer"]]
    }
  ],
  fields: { ssmHeads: ["num_heads"], ssmHeadDim: ["head_dim"], ssmGroups: ["n_groups"], ssmState: ["state_size"] },
  ends: [head("lm_head")]
}
