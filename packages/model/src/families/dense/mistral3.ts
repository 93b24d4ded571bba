// SPDX-License-Identifier: Apache-2.0
/** Llama behind a vision tower, as Mistral Small 3.1 has it. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, mlp, usualHeads } from "../parts.ts"

export const mistral3: Family = {
  name: "mistral3",
  modelTypes: ["mistral3"],
  stacks: [decoder([...attention("self_attn"), ...mlp("mlp")])],
  towers: [
    { kind: "vision", prefixes: ["vision_tower.", "model.vision_tower."] },
    { kind: "projector", prefixes: ["multi_modal_projector.", "model.multi_modal_projector."] }
  ],
  ends: usualHeads
}
