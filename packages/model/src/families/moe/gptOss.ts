// SPDX-License-Identifier: Apache-2.0
/** gpt-oss: attention sinks, experts in stacks with gate and up in turns, in bf16 or in blocks of MXFP4. */
import type { Family } from "../../structure/Family.ts"
import { attention, biased, decoder, parameter, router, stackedInputFirst, together, usualHeads } from "../parts.ts"

export const gptOss: Family = {
  name: "gpt_oss",
  modelTypes: ["gpt_oss"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...together("attention", [parameter("attention", "self_attn.sinks", "sink")]),
      ...biased("always", [...stackedInputFirst("mlp", 2), ...router("mlp.router")])
    ])
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: usualHeads
}
