// SPDX-License-Identifier: Apache-2.0
/**
 * The plans that bring one tensor from a mesh layout to another: pure, made alike by every rank and by the process that
 * starts them.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Shape } from "@tensorferry/core/base/Region"
import type { M2MMap } from "@tensorferry/core/ir/M2MMap"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import type { MeshError } from "@tensorferry/core/layout/MeshError"
import { formatMeshLayout } from "@tensorferry/core/layout/MeshText"
import { indexLowering, lowerRank } from "@tensorferry/core/planner/Lowering"
import { planMesh } from "@tensorferry/core/planner/MeshPlanner"
import type { PlanError } from "@tensorferry/core/planner/PlanError"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Result from "effect/Result"
import type { MeshChoice } from "../model/MeshChoice.ts"

export interface PlannedTensor {
  readonly name: string
  readonly shape: Shape
  readonly sourceDtype: DType
  readonly targetDtype: DType
}

export interface MeshPlans {
  readonly map: M2MMap
  /** Those of both meshes, ascending. */
  readonly ranks: ReadonlyArray<Rank>
  /** Processes that have all these ranks. */
  readonly size: number
  /** Empty for ranks in neither mesh. */
  readonly planFor: (rank: Rank) => MeshPlan
}

/** More chunks than this take minutes to list and gigabytes to keep. */
const mostCells = 2 ** 22

export const formatMeshChoice = ({ from, to }: Pick<MeshChoice, "from" | "to">): string =>
  `${formatMeshLayout(from)} → ${formatMeshLayout(to)}`

export const meshPlans = (
  tensor: PlannedTensor,
  choice: MeshChoice
): Result.Result<MeshPlans, MeshError | PlanError | ModelError> => {
  const { from, to, sourceChoice, bucketBytes } = choice
  const planned = planMesh(from, to, { sourceChoice, tensorRank: tensor.shape.length })
  if (Result.isFailure(planned)) return Result.fail(planned.failure)
  const map = planned.success
  const cells = map.cellCounts.reduce((product, count) => product * count, 1)
  if (cells > mostCells) {
    return Result.fail(
      modelError("InvalidLayout", {
        paramName: tensor.name,
        detail: `${formatMeshChoice(choice)} cuts the tensor into ${cells} cells; at most ${mostCells} are planned here.`,
        remedy: "Use smaller meshes, or plan the ranks one by one with the library."
      })
    )
  }
  const lowering = indexLowering([{ ...tensor, map }], bucketBytes === undefined ? {} : { bucketBytes })
  return Result.map(lowering, (index) => ({
    map,
    ranks: [...new Set([...from.mesh.ranks, ...to.mesh.ranks])].sort((a, b) => a - b),
    size: index.worldSize,
    planFor: (rank) => lowerRank(index, rank)
  }))
}
