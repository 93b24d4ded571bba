// SPDX-License-Identifier: Apache-2.0
/** ERNIE 4.5 with experts: dense layers first, shared experts, blocks that predict further tokens. */
import type { Family, ModuleSpec } from "../../structure/Family.ts"
import {
  attention,
  biased,
  decoder,
  last,
  layerNorms,
  listedExperts,
  mlp,
  norms,
  of,
  router,
  stackedExperts,
  usualHeads,
  usualNorms,
  usualPrefixes,
  whole
} from "../parts.ts"

/** What balances experts stands beside the router or inside of it. */
const balanced = (suffix: string, specs: ReadonlyArray<ModuleSpec>): ReadonlyArray<ModuleSpec> =>
  specs.map((spec) => ({ ...spec, companions: [{ suffix, shape: [of(1), of("experts")], isOptional: true }] }))

const layer = [
  ...attention("self_attn"),
  ...mlp("mlp"),
  ...listedExperts("mlp"),
  ...stackedExperts("mlp"),
  ...mlp("mlp.shared_experts", "shared experts"),
  ...balanced("moe_statics.e_score_correction_bias", router("mlp.gate")),
  ...balanced("e_score_correction_bias", whole("router", "mlp.moe_statics"))
]

export const ernie: Family = {
  name: "ernie4_5_moe",
  modelTypes: ["ernie4_5_moe"],
  stacks: [
    decoder(layer),
    {
      kind: "mtp",
      prefixes: usualPrefixes,
      layers: "mtp_block.{}.",
      modules: [...layerNorms(...usualNorms), ...layer],
      ends: [...norms("mtp_emb_norm.{}", "mtp_hidden_norm.{}"), ...whole("projection", "mtp_linear_proj.{}")].map(last)
    }
  ],
  ends: biased(["use_bias"], usualHeads).map(last),
  isTied: true
}
