// SPDX-License-Identifier: Apache-2.0
/** One tensor of a checkpoint between device meshes: the shards that one rank holds, and the plan that moves them. */
import type { Rank } from "@tensorferry/core/base/Ids"
import { formatShape, type Interval, lengthOf, type Shape } from "@tensorferry/core/base/Region"
import type { MeshError } from "@tensorferry/core/layout/MeshError"
import { formatMeshLayout } from "@tensorferry/core/layout/MeshText"
import type { MeshLayout } from "@tensorferry/core/layout/Placement"
import { localShard } from "@tensorferry/core/layout/ShardIntervals"
import type { PlanError } from "@tensorferry/core/planner/PlanError"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import type { HeldTensor } from "@tensorferry/model/HeldTensors"
import type { LocalTensor, ModelTensor, Piece } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { MeshChoice } from "../model/MeshChoice.ts"
import { agreeOnBucketBytes } from "./bucketSize.ts"
import type { MeshJobSpec } from "./JobSpec.ts"
import { type MeshPlans, meshPlans } from "./meshPlans.ts"
import type { PreparedJob } from "./PreparedJob.ts"

/** A shard of more pieces than this is not read from a file piece by piece. */
const mostPieces = 2 ** 16

export interface MeshJobPlans extends MeshPlans {
  readonly tensor: ModelTensor
}

/** The plans for a tensor of a checkpoint, or why there are none. */
export const checkpointMeshPlans = (
  model: Model,
  name: string,
  choice: MeshChoice
): Result.Result<MeshJobPlans, ModelError | MeshError | PlanError> => {
  const tensor = model.tensors.find((one) => one.name === name)
  if (tensor === undefined) {
    const known = model.tensors.slice(0, 3).map((one) => one.name)
    return Result.fail(
      modelError("InvalidLayout", {
        file: model.path,
        paramName: name,
        detail: "The checkpoint has no such tensor.",
        remedy: `Name one of its ${model.tensors.length} tensors, such as ${known.join(", ")}.`
      })
    )
  }
  if (choice.from.placements.some((placement) => placement._tag === "Partial")) {
    return Result.fail(
      modelError("InvalidLayout", {
        paramName: name,
        detail: `${formatMeshLayout(choice.from)} is partial, but a checkpoint holds values, not contributions to them.`,
        remedy: "Shard or replicate the source; plans of partial sources are shown by tensorferry plan."
      })
    )
  }
  const { dtype, shape } = tensor
  const planned = meshPlans({ name, shape, sourceDtype: dtype, targetDtype: dtype }, choice)
  return Result.map(planned, (plans) => ({ ...plans, tensor }))
}

/** Positions of a shard's intervals in its own memory, and in the whole tensor. */
const placesOf = (intervals: ReadonlyArray<Interval>): ReadonlyArray<readonly [local: Interval, global: Interval]> => {
  let start = 0
  return intervals.map((global) => {
    const local: Interval = [start, start + lengthOf(global)]
    start = local[1]
    return [local, global] as const
  })
}

const piecesOf = (intervals: ReadonlyArray<ReadonlyArray<Interval>>): ReadonlyArray<Piece> =>
  intervals.reduce<ReadonlyArray<Piece>>(
    (pieces, held) =>
      pieces.flatMap((piece) =>
        placesOf(held).map(([local, global]) => ({
          local: [...piece.local, local],
          global: [...piece.global, global]
        }))
      ),
    [{ local: [], global: [] }]
  )

/** What a rank keeps of the tensor; nothing where the mesh does not have the rank. */
const heldOf = (
  { name, dtype, shape }: ModelTensor,
  layout: MeshLayout,
  rank: Rank
): Result.Result<ReadonlyArray<LocalTensor>, MeshError | ModelError> => {
  if (!layout.mesh.ranks.includes(rank)) return Result.succeed([])
  return Result.flatMap(localShard(layout, shape, rank), ({ intervals, shape: held }) => {
    const count = intervals.reduce((product, some) => product * some.length, 1)
    if (count > mostPieces) return tooManyPieces(name, held, count)
    return Result.succeed([
      {
        name,
        dtype,
        shape: held,
        pieces: piecesOf(intervals),
        padding: undefined,
        storedAs: name,
        aliasOf: undefined,
        isPrimary: true
      }
    ])
  })
}

const tooManyPieces = (paramName: string, shape: Shape, count: number): Result.Result<never, ModelError> =>
  Result.fail(
    modelError("InvalidLayout", {
      paramName,
      detail: `The shard ${formatShape(shape)} consists of ${count} regions of the tensor; at most ${mostPieces} can be read.`,
      remedy: "Use smaller split factors."
    })
  )

const dictOf = (held: ReadonlyArray<HeldTensor>) =>
  held.length === 0 ? undefined : tensorDict(held.map(({ local, tensor }) => [local.name, tensor] as const))

/** This rank's part of a job. */
export const prepareMeshJob = Effect.fnUntraced(function* (spec: MeshJobSpec, model: Model, rank: Rank) {
  const group = yield* ProcessGroup
  // All ranks may be processes of one host, which share its memory.
  const freeBytes = process.availableMemory() / group.size
  const bucketBytes = spec.mesh.bucketBytes ?? (yield* agreeOnBucketBytes({ freeBytes }))
  const plans = yield* Effect.fromResult(checkpointMeshPlans(model, spec.tensor, { ...spec.mesh, bucketBytes }))
  const part: PreparedJob = {
    plan: plans.planFor(rank),
    source: yield* Effect.fromResult(heldOf(plans.tensor, plans.map.source, rank)),
    destination: yield* Effect.fromResult(heldOf(plans.tensor, plans.map.target, rank)),
    dicts: (source, destination) => Effect.succeed([dictOf(source), dictOf(destination)]),
    proof: model,
    estimate: {},
    tensorOf: (paramName) => paramName,
    shapeOf: () => plans.tensor.shape
  }
  return { size: plans.size, part }
})
