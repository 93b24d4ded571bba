// SPDX-License-Identifier: Apache-2.0
/**
 * Layout files: both sides of a reshard and the rules that cut them, in YAML or JSON. What the command line states
 * overrides what the file says.
 *
 *     preset: qwen3_moe
 *     from: {tp: 2, dp: 4, ep: 8, rules: [{match: "lm_head.weight", shard: 0, padToMultiple: 128, stage: last}]}
 *     to: tp=8
 *     ranks: disjoint
 *     stages: [12, 12, 13, 11]
 *     experts: round_robin
 */

import { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import { TypeRule } from "@tensorferry/model/conversion"
import { checkConfig, ParallelConfig, parseParallelConfig } from "@tensorferry/model/layout/ParallelConfig"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import { Placement } from "@tensorferry/model/placement/Placement"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { readYamlFile } from "./YamlFile.ts"

const { default: defaultRule, ...structure } = ShardingRules.fields

/** How tensors are cut and placed: rules of its own take precedence over the family. */
const cutFields = {
  preset: Schema.optionalKey(Schema.String),
  ...Placement.fields,
  ...structure,
  rules: Schema.optionalKey(structure.rules),
  default: defaultRule
}

const { tp, pp, dp, ep, etp } = ParallelConfig.fields

const LayoutSide = Schema.Union([
  Schema.String,
  Schema.Struct({
    tp: Schema.optionalKey(tp),
    pp: Schema.optionalKey(pp),
    dp: Schema.optionalKey(dp),
    ep,
    etp,
    ...cutFields
  })
])

export const LayoutFile = Schema.Struct({
  from: Schema.optionalKey(LayoutSide),
  to: Schema.optionalKey(LayoutSide),
  ranks: Schema.optionalKey(Schema.Literals(["collocated", "disjoint"])),
  /** Element types by name: exceptions from what --dtype and --transform do. */
  types: Schema.optionalKey(Schema.Array(TypeRule)),
  ...cutFields
})
export type LayoutFile = typeof LayoutFile.Type

/** What is said of the cut, by a file or by one side of it. */
export type CutChoice = { readonly [Name in keyof typeof cutFields]?: LayoutFile[Name] }

const example = "Write a layout as YAML or JSON, as in: preset: llama, from: tp=2, to: {tp: 4, pp: 2}, ranks: disjoint."

export const readLayoutFile = (file: string): Effect.Effect<LayoutFile, ModelError> =>
  readYamlFile(file, LayoutFile, (detail, remedy = example) => modelError("InvalidLayout", { file, detail, remedy }))

/** One side: its degrees and what it says of its own cut. */
export const sideOf = (
  file: string,
  side: NonNullable<LayoutFile["from"]>
): Effect.Effect<{ readonly config: ParallelConfig; readonly cut: CutChoice }, ModelError> => {
  const { tp = 1, pp = 1, dp = 1, ep, etp, ...cut } = typeof side === "string" ? {} : side
  const config =
    typeof side === "string"
      ? parseParallelConfig(side)
      : checkConfig({ tp, pp, dp, ...(ep === undefined ? {} : { ep }), ...(etp === undefined ? {} : { etp }) })
  return Result.isSuccess(config)
    ? Effect.succeed({ config: config.success, cut })
    : Effect.fail(modelError("InvalidLayout", { file, detail: config.failure.detail, remedy: config.failure.remedy }))
}
