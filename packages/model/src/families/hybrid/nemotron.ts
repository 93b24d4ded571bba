// SPDX-License-Identifier: Apache-2.0
/** Nemotron-H: layers that are a mixer, attention, an MLP or experts, under one name. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  column,
  embedding,
  last,
  listedExperts,
  mamba2,
  norms,
  router,
  row,
  stackedExperts,
  usualHeads,
  whole
} from "../parts.ts"

const layer = [
  ...mamba2("mixer"),
  ...attention("mixer"),
  column("mlp", "mixer.up_proj", "up"),
  row("mlp", "mixer.down_proj", "down"),
  ...listedExperts("mixer"),
  ...stackedExperts("mixer"),
  column("shared experts", "mixer.shared_experts.up_proj", "up"),
  row("shared experts", "mixer.shared_experts.down_proj", "down"),
  ...router("mixer.gate"),
  ...whole("projection", "mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
  ...norms("norm")
]

export const nemotron: Family = {
  name: "nemotron_h",
  modelTypes: ["nemotron_h"],
  stacks: [
    {
      kind: "language",
      prefixes: ["backbone.", "model."],
      layers: "layers.{}.",
      modules: layer,
      ends: [embedding("embeddings"), embedding("embed_tokens"), ...norms("norm_f").map(last)]
    },
    {
      kind: "mtp",
      prefixes: ["mtp."],
      layers: "layers.{}.",
      modules: [...layer, ...norms("enorm", "hnorm", "final_layernorm"), ...whole("projection", "eh_proj")],
      ends: []
    }
  ],
  ends: usualHeads
}
