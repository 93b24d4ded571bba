// SPDX-License-Identifier: Apache-2.0
/** Phi 3 and 4: query, key and value in one projection, gate and up in another. */
import type { Family } from "../../structure/Family.ts"
import { biased, decoder, packedAttention, packedMlp, usualHeads } from "../parts.ts"

export const phi3: Family = {
  name: "phi3",
  modelTypes: ["phi3"],
  stacks: [decoder([...biased("never", [...packedAttention("self_attn"), ...packedMlp("mlp")])])],
  ends: usualHeads
}
