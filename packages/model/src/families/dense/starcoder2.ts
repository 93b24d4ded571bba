// SPDX-License-Identifier: Apache-2.0
/** StarCoder 2: an MLP without a gate, biases and norms with biases. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, gatelessMlp, usualHeads } from "../parts.ts"

export const starcoder2: Family = {
  name: "starcoder2",
  modelTypes: ["starcoder2"],
  stacks: [
    decoder([...attention("self_attn"), ...gatelessMlp("mlp", "mlp", "c_fc", "c_proj")], { normBias: "always" })
  ],
  ends: usualHeads,
  isTied: true
}
