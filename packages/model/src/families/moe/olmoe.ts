// SPDX-License-Identifier: Apache-2.0
/** OLMoE: norms over all queries and all keys, which every rank holds whole. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, listedExperts, router, stackedExperts, usualHeads, wideNorms } from "../parts.ts"

export const olmoe: Family = {
  name: "olmoe",
  modelTypes: ["olmoe"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...wideNorms("self_attn"),
      ...listedExperts("mlp"),
      ...stackedExperts("mlp"),
      ...router("mlp.gate")
    ])
  ],
  fields: { expertWidth: ["intermediate_size"] },
  ends: usualHeads
}
