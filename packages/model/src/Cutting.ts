// SPDX-License-Identifier: Apache-2.0
/**
 * What is said of the cut of a model: rules that a user states, and the family that the rest is read by. Plain data, so
 * that every rank makes the same layout of it and a manifest can keep it.
 */
import { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Schema from "effect/Schema"
import { Placement } from "./placement/Placement.ts"
import { ModelConfig } from "./structure/ModelConfig.ts"

/** By which family a model is read. */
export const FamilyChoice = Schema.Struct({
  /** A known `model_type`. */
  preset: Schema.String,
  /** The model's config.json, where it has one. */
  config: Schema.optionalKey(ModelConfig),
  placement: Placement
})
export type FamilyChoice = typeof FamilyChoice.Type

/** Rules take precedence over the family, tensor by tensor. */
export const Cutting = Schema.Struct({ ...ShardingRules.fields, family: Schema.optionalKey(FamilyChoice) })
export type Cutting = typeof Cutting.Type
