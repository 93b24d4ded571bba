// SPDX-License-Identifier: Apache-2.0
/** Both sides of a job whose tensors have the names of a convention: layouts, and the plan between them. */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { PlanError } from "@tensorferry/core/planner/PlanError"
import { indexRosters, type PlanIndex, planRank } from "@tensorferry/core/planner/RosterPlanner"
import * as Result from "effect/Result"
import type { FamilyChoice } from "../Cutting.ts"
import type { ModelStructure } from "../describe/ModelStructure.ts"
import { type LayoutError, type ModelTensor, worldSizeOf } from "../layout/ModelLayout.ts"
import { structureOf } from "../placement/cutModel.ts"
import { mergePlacements } from "../placement/Placement.ts"
import { mappingOf } from "./conventions/Convention.ts"
import { conventionNames, findConvention } from "./conventions/conventions.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { type MappedLayouts, type MappedSide, mappedLayouts } from "./mappedLayouts.ts"
import type { NamedChoice, NamedSide } from "./NamedSide.ts"

/** Layouts of both sides, and how to plan each rank. */
export interface NamedLayouts extends MappedLayouts {
  /** What the tensors of the model mean. */
  readonly structure: ModelStructure
  /** Ranks of the job, both sides together. */
  readonly size: number
  /** What the plans of all ranks are made from. */
  readonly index: PlanIndex
  /** The plan of one rank. */
  readonly planFor: (rank: Rank) => ReshardPlan
}

/** One side as a user states it, with the rules and places of its convention. */
export const sideOf = (
  { convention: name, config, mapping, placement = {} }: NamedSide,
  structure: ModelStructure,
  family: FamilyChoice,
  firstRank: Rank
): Result.Result<MappedSide, MappingError> =>
  Result.gen(function* () {
    const convention = findConvention(name)
    if (convention === undefined)
      return yield* mappingError(
        "unsupported",
        name,
        undefined,
        "There is no such convention.",
        `Choose one of ${conventionNames.join(", ")}.`
      )
    const options = { stages: config.pp, tp: config.tp }
    return {
      structure,
      config,
      firstRank,
      mapping: mapping ?? (yield* mappingOf(convention, structure, options)),
      placement: mergePlacements([placement, family.placement, convention.placement(options)])
    }
  })

/**
 * Lays out both sides. Fails with a MappingError where names or shapes do not fit a convention, with a LayoutError where
 * degrees do not fit the model, and with a PlanError where the destination cannot be made from the source.
 */
export const namedLayouts = (
  tensors: ReadonlyArray<ModelTensor>,
  { from, to, ranks, family }: NamedChoice
): Result.Result<NamedLayouts, MappingError | LayoutError | PlanError> =>
  Result.gen(function* () {
    const structure = yield* structureOf(tensors, family)
    const sizes = [worldSizeOf(from.config), worldSizeOf(to.config)] as const
    const source = yield* sideOf(from, structure, family, 0)
    const destination = yield* sideOf(to, structure, family, ranks === "disjoint" ? sizes[0] : 0)
    const layouts = yield* mappedLayouts(tensors, source, destination)
    const index = yield* indexRosters(layouts.source.roster, layouts.destination.roster)
    return {
      ...layouts,
      structure,
      index,
      size: ranks === "disjoint" ? sizes[0] + sizes[1] : Math.max(...sizes),
      planFor: (rank) => planRank(index, rank)
    }
  })
