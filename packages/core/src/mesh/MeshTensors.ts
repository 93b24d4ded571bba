// SPDX-License-Identifier: Apache-2.0
/**
 * Connects a mesh plan's chunks to the tensors given for it: refuses tensors that the plan was not made for, and finds what
 * the update would overwrite before it is read.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { equalShapes, formatShape, type Region } from "../base/Region.ts"
import type { Chunk } from "../ir/Chunk.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import { checkMeshPlan } from "../planner/MeshCheck.ts"
import { touching } from "../reshard/InPlace.ts"
import { type ReshardError, reshardError } from "../reshard/ReshardError.ts"
import { isSameView } from "../tensor/MemoryRange.ts"
import { isQuantized } from "../tensor/QuantizedTensor.ts"
import { sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import { resolveTensor, type TensorDict } from "../tensor/TensorDict.ts"

const remedy = "Make the plan from what the ranks hold now."

/** The boxes that a rank's chunks read and write. */
export interface MeshViews {
  /** Of every chunk that this rank is the source of. */
  readonly sources: ReadonlyMap<Chunk, Tensor>
  /** Of every chunk that ends in this rank's destination, but for those that lie there already. */
  readonly targets: ReadonlyMap<Chunk, Tensor>
}

export const chunksOf = (plan: MeshPlan): ReadonlyArray<Chunk> => [
  ...plan.localChunks,
  ...plan.buckets.flatMap(({ entries }) => entries.map(({ chunk }) => chunk))
]

const planFault = (plan: MeshPlan, rank: Rank): ReshardError | undefined => {
  if (plan.rank !== rank) {
    return reshardError("InvalidPlan", {
      rank,
      detail: `The plan is for rank ${plan.rank}.`,
      remedy: "Pass this rank's own plan."
    })
  }
  const [fault] = checkMeshPlan(plan)
  if (fault !== undefined) {
    return reshardError("InvalidPlan", { rank, paramName: fault.paramName, detail: fault.detail, remedy: fault.remedy })
  }
  for (const { kind, tensor, transferDtype } of chunksOf(plan)) {
    const { name, sourceDtype, targetDtype } = plan.tensors[tensor]!
    const wanted = kind === "none" ? sourceDtype : wireDType(sourceDtype, targetDtype)
    if (transferDtype === wanted) continue
    return reshardError("InvalidPlan", {
      rank,
      paramName: name,
      detail: `A ${kind} chunk travels as ${transferDtype}, where ${wanted} is the type for ${sourceDtype} to ${targetDtype}.`,
      remedy: "Make the plan again from the layouts; do not edit it."
    })
  }
  return undefined
}

/** The tensors of one side that the plan uses, by their number in it. */
const resolveSide = (
  plan: MeshPlan,
  side: "source" | "destination",
  used: ReadonlySet<number>,
  dict: TensorDict | undefined
): Result.Result<ReadonlyMap<number, Tensor>, ReshardError> => {
  const { rank } = plan
  const resolved = new Map<number, Tensor>()
  for (const at of used) {
    const wanted = plan.tensors[at]!
    const [dtype, shape] =
      side === "source" ? [wanted.sourceDtype, wanted.sourceShape] : [wanted.targetDtype, wanted.targetShape]
    const paramName = wanted.name
    const given = dict === undefined ? undefined : resolveTensor(dict, paramName)
    if (given === undefined) {
      return Result.fail(
        reshardError("TensorMissing", {
          rank,
          paramName,
          detail: `The plan uses the ${side} tensor, but ${dict === undefined ? `no ${side} was given` : "it was not given"}.`,
          remedy: `Pass a ${side} that holds every tensor of the plan.`
        })
      )
    }
    if (isQuantized(given) || given.dtype !== dtype || !equalShapes(given.shape, shape ?? [])) {
      const found = isQuantized(given) ? "quantized" : `${given.dtype}${formatShape(given.shape)}`
      return Result.fail(
        reshardError("TensorMismatch", {
          rank,
          paramName,
          detail: `The ${side} tensor is ${found}, the plan was made for ${dtype}${formatShape(shape ?? [])}.`,
          remedy
        })
      )
    }
    if (given.storage.isFreed()) {
      return Result.fail(
        reshardError("TensorMissing", {
          rank,
          paramName,
          detail: `The storage of the ${side} tensor was freed.`,
          remedy: "Keep the tensor's scope open during the update."
        })
      )
    }
    resolved.set(at, given)
  }
  return Result.succeed(resolved)
}

/** The part of a tensor that a box selects; refused where it would begin inside a byte. */
export const boxOf = (
  plan: MeshPlan,
  chunk: Chunk,
  tensor: Tensor,
  region: Region
): Result.Result<Tensor, ReshardError> =>
  Result.mapError(sliceTensor(tensor, region), ({ detail }) =>
    reshardError("TensorMismatch", {
      rank: plan.rank,
      paramName: plan.tensors[chunk.tensor]!.name,
      detail: `${detail}.`,
      remedy
    })
  )

/** The views of a plan's chunks, or why the plan and the tensors do not fit this rank. */
export const resolveViews = (
  plan: MeshPlan,
  rank: Rank,
  source: TensorDict | undefined,
  destination: TensorDict | undefined
): Effect.Effect<MeshViews, ReshardError> =>
  Effect.gen(function* () {
    const fault = planFault(plan, rank)
    if (fault !== undefined) return yield* fault
    const chunks = chunksOf(plan)
    const read = chunks.filter(({ srcIdx }) => srcIdx.rank === rank)
    const written = chunks.filter(({ kind, dstIdx }) => kind !== "none" && dstIdx.some((to) => to.rank === rank))
    const tensorsOf = (of: ReadonlyArray<Chunk>) => new Set(of.map(({ tensor }) => tensor))
    const from = yield* Effect.fromResult(resolveSide(plan, "source", tensorsOf(read), source))
    const into = yield* Effect.fromResult(resolveSide(plan, "destination", tensorsOf(written), destination))
    const sources = new Map<Chunk, Tensor>()
    for (const chunk of read) {
      const box = boxOf(plan, chunk, from.get(chunk.tensor)!, chunk.srcSliceTuples)
      if (Result.isFailure(box)) return yield* box.failure
      sources.set(chunk, box.success)
    }
    const targets = new Map<Chunk, Tensor>()
    for (const chunk of written) {
      const target = boxOf(plan, chunk, into.get(chunk.tensor)!, chunk.sliceTuples ?? [])
      if (Result.isFailure(target)) return yield* target.failure
      const own = chunk.kind === "local" && chunk.sourcePartialGroups.length === 0 ? sources.get(chunk) : undefined
      if (own === undefined || !isSameView(own, target.success)) targets.set(chunk, target.success)
    }
    return { sources, targets }
  })

/**
 * The chunks whose source box may be overwritten by the update itself. They are read from a copy made before anything is
 * written.
 */
export const overwrittenChunks = ({ sources, targets }: MeshViews): ReadonlyArray<Chunk> => {
  if (targets.size === 0) return []
  const isTouched = touching([...targets.values()])
  const isKept = (chunk: Chunk) => chunk.kind === "local" && !targets.has(chunk)
  return [...sources].flatMap(([chunk, view]) => (!isKept(chunk) && isTouched(view) ? [chunk] : []))
}
