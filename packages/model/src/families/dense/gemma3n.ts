// SPDX-License-Identifier: Apache-2.0
/** The language model of Gemma 3n: alternating updates, inputs per layer and low-rank residuals stay whole. */
import type { Family } from "../../structure/Family.ts"
import {
  attentionSharingKeys,
  decoder,
  embedding,
  first,
  freely,
  headNorms,
  last,
  mlp,
  shaped,
  together,
  usualHeads,
  usualNorms,
  whole,
  wholeTensors
} from "../parts.ts"

export const gemma3n: Family = {
  name: "gemma3n",
  modelTypes: ["gemma3n", "gemma3n_text"],
  stacks: [
    decoder(
      [
        ...attentionSharingKeys("self_attn", headNorms("self_attn")),
        ...mlp("mlp"),
        ...together("layer", [
          ...whole(
            "altup",
            "altup.correction_coefs",
            "altup.modality_router",
            "altup.prediction_coefs",
            "altup.router_norm"
          ),
          ...wholeTensors("altup", "altup.correct_output_scale"),
          ...whole("laurel", "laurel.linear_left", "laurel.linear_right", "laurel.post_laurel_norm"),
          ...whole("per-layer input", "per_layer_input_gate", "per_layer_projection")
        ])
      ],
      {
        norms: [...usualNorms, "pre_feedforward_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"],
        needs: [["layer"], ["attention"], ["mlp"]],
        ends: [
          // A vocabulary of its own, and rows for all layers.
          ...shaped([], freely([embedding("embed_tokens_per_layer")])).map(first),
          ...whole("per-layer input", "per_layer_model_projection", "per_layer_projection_norm").map(first),
          ...whole("altup", "altup_projections.{}").map(first),
          ...whole("altup", "altup_unembed_projections.{}").map(last)
        ]
      }
    )
  ],
  towers: [
    { kind: "vision", prefixes: ["model.vision_tower.", "vision_tower.", "model.embed_vision.", "embed_vision."] },
    { kind: "audio", prefixes: ["model.audio_tower.", "audio_tower.", "model.embed_audio.", "embed_audio."] }
  ],
  ends: usualHeads,
  isTied: true
}
