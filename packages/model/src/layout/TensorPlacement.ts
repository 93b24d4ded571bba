// SPDX-License-Identifier: Apache-2.0
/**
 * Which rule applies to which tensor of a model, and what follows from it whatever the rank: the dimension that is cut, the
 * pipeline stage, the experts.
 */

import type { DType } from "@tensorferry/core/base/DType"
import { formatShape, type Interval, type Shape } from "@tensorferry/core/base/Region"
import { expertNumber } from "@tensorferry/core/layout/ParameterNames"
import { findRule, layerNumber, type ShardingRule, type ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Result from "effect/Result"
import { type LayoutError, layoutError } from "./LayoutError.ts"
import type { StatedCut } from "./TensorCut.ts"

/** A tensor of the whole model. */
export interface ModelTensor {
  readonly name: string
  readonly dtype: DType
  readonly shape: Shape
}

/** Runs of experts by position in the expert-parallel group; without it they follow `chunkInterval`. */
interface ExpertRuns {
  readonly held?: ReadonlyArray<ReadonlyArray<Interval>>
}

/** The experts of a tensor: all of them along one dimension, or one whose number its name holds. */
export type Experts =
  | ({ readonly _tag: "Fused"; readonly count: number; readonly dim: number } & ExpertRuns)
  | ({ readonly _tag: "Named"; readonly count: number; readonly number: number } & ExpertRuns)

/** A tensor of a model and the dimension that is cut, by a rule or as stated. */
export interface PlacedTensor extends ModelTensor {
  readonly rule: ShardingRule | StatedCut
  /** The dimension that is cut; undefined for tensors that are not. */
  readonly dim: number | undefined
  readonly stage: number
  readonly experts: Experts | undefined
  /** The tensor that the model holds in its place; undefined for tensors that the model holds itself. */
  readonly aliasOf: string | undefined
}

/** Contiguous runs of layers, as even as possible, longer runs first. */
const stageOf = (position: number, layers: number, stages: number): number => {
  const short = Math.floor(layers / stages)
  const longer = layers % stages
  const inLonger = longer * (short + 1)
  return position < inLonger
    ? Math.floor(position / (short + 1))
    : longer + Math.floor((position - inLonger) / Math.max(1, short))
}

const invalidRule = (name: string, rule: ShardingRule, detail: string): Result.Result<never, LayoutError> =>
  layoutError("InvalidRule", [name], `Rule "${rule.match}" ${detail}`, "Correct the rule.")

/** Tensors of the model, then those that it shares under other names. */
const withAliases = (
  tensors: ReadonlyArray<ModelTensor>,
  rules: ShardingRules
): Result.Result<ReadonlyArray<ModelTensor & Pick<PlacedTensor, "aliasOf">>, LayoutError> => {
  const known = new Map(tensors.map((tensor) => [tensor.name, tensor]))
  const shared: Array<ModelTensor & Pick<PlacedTensor, "aliasOf">> = []
  for (const { name, of } of rules.aliases ?? []) {
    // A model that stores both keeps both: only then may they differ.
    if (known.has(name)) continue
    const owner = known.get(of)
    if (owner === undefined) {
      return layoutError(
        "InvalidAlias",
        [name],
        `It shares the storage of ${of}, which the model does not hold.`,
        "Name the tensor that owns the storage."
      )
    }
    if (!shared.some((other) => other.name === name)) shared.push({ ...owner, name, aliasOf: of })
  }
  return Result.succeed([...tensors.map((tensor) => ({ ...tensor, aliasOf: undefined })), ...shared])
}

const expertsOf = (
  { name, shape }: ModelTensor,
  rule: ShardingRule,
  dim: number | undefined,
  namedCount: number
): Result.Result<Experts | undefined, LayoutError> => {
  if (rule.experts === undefined) return Result.succeed(undefined)
  if (rule.experts === "name") {
    const number = expertNumber(name)
    return number === null
      ? invalidRule(name, rule, "looks for an expert's number in the name and finds none.")
      : Result.succeed({ _tag: "Named", count: namedCount, number })
  }
  const count = shape[rule.experts]
  // Experts without bytes are not told apart, since there may be 2^53 of them: the tensor is whole on every rank.
  if (count !== undefined && count > 0 && shape.includes(0)) return Result.succeed(undefined)
  return count === undefined || rule.experts === dim
    ? invalidRule(name, rule, `counts experts on dimension ${rule.experts} of shape ${formatShape(shape)}.`)
    : Result.succeed({ _tag: "Fused", count, dim: rule.experts })
}

/** Applies the rules. The order of tensors is kept; shared ones follow the others. */
export const placeTensors = (
  tensors: ReadonlyArray<ModelTensor>,
  rules: ShardingRules,
  stages: number
): Result.Result<ReadonlyArray<PlacedTensor>, LayoutError> => {
  const found = withAliases(tensors, rules)
  if (Result.isFailure(found)) return Result.fail(found.failure)
  const all = found.success.map((tensor) => ({ tensor, rule: findRule(rules, tensor.name)! }))
  const unmatched = all.filter(({ rule }) => rule === undefined)
  if (unmatched.length > 0) {
    return layoutError(
      "NoRule",
      unmatched.map(({ tensor }) => tensor.name),
      "No rule says how to shard them.",
      'Add rules that match them, make the rules by a preset, or give the rules default: "replicate".'
    )
  }
  const layerOf = all.map(({ tensor }) => layerNumber(rules, tensor.name))
  const layers = [...new Set(layerOf.filter((layer) => layer !== undefined))].sort((a, b) => a - b)
  const position = new Map(layers.map((layer, at) => [layer, at]))
  const namedCounts = new Map<string, number>()
  for (const { tensor, rule } of all) {
    if (rule.experts !== "name") continue
    namedCounts.set(rule.match, Math.max(namedCounts.get(rule.match) ?? 0, (expertNumber(tensor.name) ?? -1) + 1))
  }
  const placed: Array<PlacedTensor> = []
  for (const [at, { tensor, rule }] of all.entries()) {
    const { name, shape } = tensor
    const dim = rule.shard === "replicate" ? undefined : rule.shard < 0 ? rule.shard + shape.length : rule.shard
    if (dim !== undefined && (dim < 0 || dim >= shape.length)) {
      return invalidRule(name, rule, `shards dimension ${rule.shard} of shape ${formatShape(shape)}.`)
    }
    if ([rule.heads, rule.blocks, rule.padToMultiple].filter((form) => form !== undefined).length > 1) {
      return invalidRule(name, rule, "states more than one of heads, blocks and padToMultiple.")
    }
    const experts = expertsOf(tensor, rule, dim, namedCounts.get(rule.match) ?? 0)
    if (Result.isFailure(experts)) return Result.fail(experts.failure)
    const layer = layerOf[at]
    const stage =
      layers.length === 0
        ? stageOf(at, all.length, stages)
        : layer !== undefined
          ? stageOf(position.get(layer)!, layers.length, stages)
          : rule.stage === "last"
            ? stages - 1
            : 0
    placed.push({ ...tensor, rule, dim, stage, experts: experts.success })
  }
  return Result.succeed(placed)
}
