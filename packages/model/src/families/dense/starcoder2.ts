// SPDX-License-Identifier: Apache-2.0
/** StarCoder 2: an MLP without a gate, biases and norms with biases. */
import type { Family } from "../../structure/Family.ts"
import { attention, column, decoder, row, usualHeads } from "../parts.ts"

export const starcoder2: Family = {
  name: "starcoder2",
  modelTypes: ["starcoder2"],
  stacks: [decoder([...attention("self_attn"), column("mlp", "mlp.c_fc", "up"), row("mlp", "mlp.c_proj", "down")])],
  ends: usualHeads,
  isTied: true
}
