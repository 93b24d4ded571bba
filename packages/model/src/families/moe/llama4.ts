// SPDX-License-Identifier: Apache-2.0
/** Llama 4: experts in stacks, input first, beside a shared expert; a vision tower in front. */
import type { Family } from "../../structure/Family.ts"
import { attention, decoder, listedExperts, mlp, router, stackedInputFirst, usualHeads } from "../parts.ts"

export const llama4: Family = {
  name: "llama4",
  modelTypes: ["llama4", "llama4_text"],
  stacks: [
    decoder([
      ...attention("self_attn"),
      ...mlp("feed_forward"),
      ...stackedInputFirst("feed_forward"),
      ...listedExperts("feed_forward"),
      ...mlp("feed_forward.shared_expert", "shared experts"),
      ...router("feed_forward.router")
    ])
  ],
  towers: [
    { kind: "vision", prefixes: ["vision_model.", "model.vision_model."] },
    { kind: "projector", prefixes: ["multi_modal_projector.", "model.multi_modal_projector."] }
  ],
  fields: {
    width: ["intermediate_size_mlp"],
    expertWidth: ["intermediate_size"],
    sharedWidth: ["intermediate_size"]
  },
  ends: usualHeads
}
