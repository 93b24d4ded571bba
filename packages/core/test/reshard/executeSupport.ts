// SPDX-License-Identifier: Apache-2.0
/** Shared by tests of execution: small layouts, and one rank's memory for both of its sides. */

import { type ModelTensor, modelLayout } from "@tensorferry/model/layout/ModelLayout"
import { allocateSide, fillSide, type OracleModel } from "@tensorferry/testing/planning/oracle"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { DType } from "../../src/base/DType.ts"
import type { Rank } from "../../src/base/Ids.ts"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import type { Roster } from "../../src/layout/Roster.ts"
import type { ShardingRules } from "../../src/layout/ShardingRules.ts"
import { indexRosters, planRank } from "../../src/planner/RosterPlanner.ts"

export const layoutOf = (
  tp: number,
  options: {
    readonly pp?: number
    readonly dp?: number
    readonly firstRank?: number
    readonly dtype?: DType
    readonly tensors?: ReadonlyArray<ModelTensor>
    readonly rules?: ShardingRules
  } = {}
) =>
  Result.getOrThrow(
    modelLayout({
      tensors: options.tensors ?? [
        { name: "layers.0.up.weight", dtype: options.dtype ?? "float32", shape: [7, 5] },
        { name: "layers.1.down.weight", dtype: options.dtype ?? "float32", shape: [5, 8] },
        { name: "norm.weight", dtype: options.dtype ?? "float32", shape: [11] }
      ],
      rules: options.rules ?? {
        rules: [
          { match: "*up.weight", shard: 0 },
          { match: "*down.weight", shard: 1 },
          { match: "norm.weight", shard: "replicate", stage: "last" }
        ]
      },
      config: { tp, pp: options.pp ?? 1, dp: options.dp ?? 1 },
      firstRank: options.firstRank ?? 0
    })
  )

export const rosterOf = (...input: Parameters<typeof layoutOf>): Roster => layoutOf(...input).roster

export const plansOf = (source: Roster, destination: Roster, size: number): ReadonlyArray<ReshardPlan> => {
  const index = Result.getOrThrow(indexRosters(source, destination))
  return Array.from({ length: size }, (_, rank) => planRank(index, rank))
}

/** A rank's tensors: the source with its values, the destination poisoned. */
export const sidesOf = Effect.fnUntraced(function* (model: OracleModel, rank: Rank, round = 0) {
  const source = yield* allocateSide(model, "source", rank)
  const destination = yield* allocateSide(model, "destination", rank)
  if (source !== undefined) yield* fillSide(model, source, round)
  return { source, destination }
})
