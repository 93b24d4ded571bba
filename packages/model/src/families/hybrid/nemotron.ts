// SPDX-License-Identifier: Apache-2.0
/** Nemotron-H: layers that are a mixer, attention, an MLP or experts, under one name. */
import type { Family } from "../../structure/Family.ts"
import {
  attention,
  correctedRouter,
  embedding,
  finalNorm,
  gatelessExperts,
  gatelessMlp,
  layerNorms,
  mamba2,
  norms,
  of,
  shaped,
  stackedExperts,
  usualHeads,
  whole
} from "../parts.ts"

const layer = [
  ...mamba2("mixer"),
  ...attention("mixer"),
  ...gatelessMlp("mixer"),
  // Experts may read a latent.
  ...shaped([of("experts"), of("expertWidth"), of("expertInput")], stackedExperts("mixer").slice(1)),
  ...shaped([of("expertWidth"), of("expertInput")], gatelessExperts("mixer").slice(0, 1)),
  ...shaped([of("expertInput"), of("expertWidth")], gatelessExperts("mixer").slice(1)),
  ...gatelessMlp("mixer.shared_experts", "shared experts"),
  ...correctedRouter("mixer.gate"),
  ...whole("projection", "mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
  ...layerNorms("norm")
]

const needs = [["layer"], ["attention", "mixer", "mlp", "experts"]]

export const nemotron: Family = {
  name: "nemotron_h",
  modelTypes: ["nemotron_h"],
  stacks: [
    {
      kind: "language",
      prefixes: ["backbone.", "model."],
      layers: "layers.{}.",
      modules: layer,
      ends: [embedding("embeddings"), embedding("embed_tokens"), finalNorm("norm_f")],
      needs
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
