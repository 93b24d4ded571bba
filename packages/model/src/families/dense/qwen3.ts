// SPDX-License-Identifier: Apache-2.0
/** Qwen 3: norms of queries and keys inside every head; in its VL models a vision tower. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, headNorms, mlp, usualHeads } from "../parts.ts"

export const qwen3: Family = {
  name: "qwen3",
  modelTypes: ["qwen3", "qwen3_vl", "qwen3_vl_text"],
  stacks: [decoder([...attention("self_attn"), ...headNorms("self_attn"), ...mlp("mlp")])],
  towers: [{ kind: "vision", prefixes: ["visual.", "model.visual."] }],
  ends: usualHeads
}
