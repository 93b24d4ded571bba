// SPDX-License-Identifier: Apache-2.0
/**
 * PyTorch's FSDP2: every parameter of a model of transformers, its rows cut over the ranks that the degree tp states,
 * whatever its structure. Ranks behind the last row hold none.
 */
import { type MappingRule, make, type Recipe } from "../Mapping.ts"
import type { Convention } from "./Convention.ts"
import { hf } from "./hf.ts"
import { transformers } from "./transformers.ts"

const rows = (recipe: Recipe): Recipe => ({ cut: recipe, uneven: true })

/** Buffers are no parameters: every rank has them whole. ERNIE's statistics are parameters. */
const buffers: ReadonlyArray<MappingRule> = [
  make("{owner...}.moe_statics.{name*}", rows("{owner...}.moe_statics.{name*}")),
  ...["e_score_correction_bias", "expert_bias"].map((name) => make(`{owner...}.${name}`, `{owner...}.${name}`))
]

const isBuffer = (name: string): boolean => /(?<!moe_statics)\.(e_score_correction_bias|expert_bias)$/.test(name)

const sharded = (name: string, names: Convention): Convention => ({
  name,
  reference: "fully_shard of PyTorch 2.13",
  ...(names.quantized === undefined ? {} : { quantized: names.quantized }),
  placement: names.placement,
  mapping: (structure, options) => {
    const { rules } = names.mapping(structure, options)
    return {
      rules: [
        ...rules.map((rule) => ("name" in rule && !isBuffer(rule.name) ? { ...rule, from: rows(rule.from) } : rule)),
        ...buffers,
        make("{rest...}", rows("{rest...}"))
      ],
      others: "keep",
      held: "whole"
    }
  }
})

/** The parameters that transformers makes. */
export const fsdp2: Convention = sharded("fsdp2", transformers)

/** Of a model that keeps the checkpoint's names. */
export const fsdp2Hf: Convention = sharded("fsdp2-hf", hf)
