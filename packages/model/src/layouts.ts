// SPDX-License-Identifier: Apache-2.0
/** Both layouts of a job and the plan between them: pure, made alike by every rank and by the process that starts them. */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { PlanError } from "@tensorferry/core/planner/PlanError"
import { indexRosters, type PlanIndex, planRank } from "@tensorferry/core/planner/RosterPlanner"
import * as Result from "effect/Result"
import type { Cutting } from "./Cutting.ts"
import { type Conversion, convertedRules, convertedTensors, plannedTensors } from "./conversion.ts"
import {
  LayoutError,
  type ModelLayout,
  type ModelTensor,
  type ParallelConfig,
  worldSizeOf
} from "./layout/ModelLayout.ts"
import { type CutInput, cutModel } from "./placement/cutModel.ts"

/** What a user states about both sides of a job. */
export interface LayoutChoice {
  readonly from: ParallelConfig
  readonly to: ParallelConfig
  /** Collocated sides both begin at rank 0; of disjoint ones, the destination's ranks follow the source's. */
  readonly ranks: "collocated" | "disjoint"
  readonly rules: Cutting
  /** Rules of the source where they are not those of the destination. */
  readonly sourceRules?: Cutting
  readonly conversion?: Conversion
}

/** Both layouts of a job, and how to plan each rank. */
export interface JobLayouts {
  /** The side that is loaded. */
  readonly source: ModelLayout
  /** The side that the plans lead to. */
  readonly destination: ModelLayout
  /** What the destination holds: its tensors as they are converted, and the scales that come with them. */
  readonly result: ModelLayout
  /** Processes of the job. */
  readonly size: number
  /** From which `planFor` makes plans. */
  readonly index: PlanIndex
  /** The plan of one rank. */
  readonly planFor: (rank: Rank) => ReshardPlan
}

/** Processes of the job: the ranks of both sides together where they are disjoint, else those of the larger side. */
export const jobSize = (choice: LayoutChoice): number => {
  const sizes = [worldSizeOf(choice.from), worldSizeOf(choice.to)] as const
  return choice.ranks === "disjoint" ? sizes[0] + sizes[1] : Math.max(...sizes)
}

/** The library's remedies, in the words of whoever typed a command. */
const layoutOf = (stated: CutInput): Result.Result<ModelLayout, LayoutError> =>
  Result.mapError(cutModel(stated), (error) =>
    error.kind === "NoRule" && stated.rules.family === undefined
      ? new LayoutError({
          kind: error.kind,
          paramNames: error.paramNames,
          detail: error.detail,
          remedy: "Pass rules for them (--rules FILE), a --preset, or --default replicate."
        })
      : error
  )

/**
 * Lays out both sides. Fails with a LayoutError where rules or degrees do not fit the tensors, and with a PlanError
 * where the destination cannot be made from the source.
 */
export const jobLayouts = (
  tensors: ReadonlyArray<ModelTensor>,
  choice: LayoutChoice
): Result.Result<JobLayouts, LayoutError | PlanError> => {
  const source = layoutOf({ tensors, rules: choice.sourceRules ?? choice.rules, config: choice.from })
  if (Result.isFailure(source)) return Result.fail(source.failure)
  const firstRank = choice.ranks === "disjoint" ? worldSizeOf(choice.from) : 0
  const planned = plannedTensors(tensors, choice.conversion)
  const destination = layoutOf({ tensors: planned, rules: choice.rules, config: choice.to, firstRank })
  if (Result.isFailure(destination)) return Result.fail(destination.failure)
  const result =
    choice.conversion === undefined
      ? destination
      : layoutOf({
          tensors: convertedTensors(tensors, choice.conversion),
          rules: convertedRules(choice.rules, choice.conversion),
          config: choice.to,
          firstRank
        })
  if (Result.isFailure(result)) return Result.fail(result.failure)
  const index = indexRosters(source.success.roster, destination.success.roster)
  if (Result.isFailure(index)) return Result.fail(index.failure)
  return Result.succeed({
    source: source.success,
    destination: destination.success,
    result: result.success,
    size: jobSize(choice),
    index: index.success,
    planFor: (rank) => planRank(index.success, rank)
  })
}
