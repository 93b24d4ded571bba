// SPDX-License-Identifier: Apache-2.0
/** Gemma 2 and 3: four norms around each layer, a tied head; Gemma 3 also sees. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, headNorms, mlp, usualHeads, usualNorms } from "../parts.ts"

const sandwich = ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
const fourNorms = { norms: [...usualNorms, ...sandwich] }

export const gemma2: Family = {
  name: "gemma2",
  modelTypes: ["gemma", "gemma2"],
  stacks: [decoder([...attention("self_attn"), ...mlp("mlp")], fourNorms)],
  lacks: { gemma: sandwich },
  ends: usualHeads,
  isTied: true
}

export const gemma3: Family = {
  name: "gemma3",
  modelTypes: ["gemma3", "gemma3_text"],
  stacks: [decoder([...attention("self_attn"), ...headNorms("self_attn"), ...mlp("mlp")], fourNorms)],
  towers: [
    { kind: "vision", prefixes: ["vision_tower.", "model.vision_tower."] },
    { kind: "projector", prefixes: ["multi_modal_projector.", "model.multi_modal_projector."] }
  ],
  ends: usualHeads,
  // Published configs leave out what the smallest of them has.
  defaults: { num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256 },
  isTied: true
}
