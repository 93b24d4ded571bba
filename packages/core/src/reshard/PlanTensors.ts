// SPDX-License-Identifier: Apache-2.0
/**
 * Connects a plan's names to the tensors given for it, and refuses tensors that the plan was not made for.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { equalShapes, formatShape } from "../base/Region.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { checkMeshPlan } from "../planner/MeshCheck.ts"
import { type AnyPlan, opsOf } from "../planner/MeshOps.ts"
import { checkPlan } from "../planner/PlanCheck.ts"
import { isContribution, type Leg } from "../planner/Waves.ts"
import { isQuantized, type QuantizedTensor, shapeOfValues } from "../tensor/QuantizedTensor.ts"
import { permuteTensor, sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import { resolveTensor, type TensorDict } from "../tensor/TensorDict.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"

const remedy = "Make the plan from what the ranks hold now."

/** The region of a tensor that an operation names, its dimensions in the order in which it travels. */
export const plainView = (
  rank: number,
  op: TransferOp,
  tensor: Tensor | QuantizedTensor
): Effect.Effect<Tensor, ReshardError> => {
  const mismatch = (detail: string) =>
    Effect.fail(reshardError("TensorMismatch", { rank, paramName: op.paramName, taskId: op.taskId, detail, remedy }))
  if (isQuantized(tensor)) return mismatch("The tensor is quantized, but no transform was chosen for it.")
  const view = sliceTensor(tensor, op.mySlice)
  if (Result.isFailure(view)) return mismatch(view.failure.detail)
  return Effect.succeed(op.isSend && op.axes !== undefined ? permuteTensor(view.success, op.axes) : view.success)
}

/** What a leg moves of what its operation moves. */
export const legView = (rank: number, { op, within }: Leg, view: Tensor): Effect.Effect<Tensor, ReshardError> => {
  if (within === undefined) return Effect.succeed(view)
  const { paramName, taskId } = op
  return Effect.mapError(Effect.fromResult(sliceTensor(view, within)), ({ detail }) =>
    reshardError("TensorMismatch", { rank, paramName, taskId, detail, remedy })
  )
}

const checkSide = (
  rank: number,
  side: "source" | "destination",
  tensors: ReshardPlan["sourceTensors"],
  used: ReadonlySet<string>,
  dict: TensorDict | undefined
): ReshardError | undefined => {
  for (const wanted of tensors) {
    if (!used.has(wanted.name)) continue
    const given = dict === undefined ? undefined : resolveTensor(dict, wanted.name)
    if (given === undefined) {
      return reshardError("TensorMissing", {
        rank,
        paramName: wanted.name,
        detail: `The plan uses the ${side} tensor, but ${dict === undefined ? `no ${side} was given` : "it was not given"}.`,
        remedy: `Pass a ${side} that holds every tensor of the plan.`
      })
    }
    const plain = isQuantized(given) ? given.data : given
    if (!equalShapes(shapeOfValues(given), wanted.shape) || (!isQuantized(given) && plain.dtype !== wanted.dtype)) {
      return reshardError("TensorMismatch", {
        rank,
        paramName: wanted.name,
        detail: `The ${side} tensor is ${plain.dtype}${formatShape(shapeOfValues(given))}, the plan was made for ${wanted.dtype}${formatShape(wanted.shape)}.`,
        remedy
      })
    }
    if (plain.storage.isFreed()) {
      return reshardError("TensorMissing", {
        rank,
        paramName: wanted.name,
        detail: `The storage of the ${side} tensor was freed.`,
        remedy: "Keep the tensor's scope open during the update."
      })
    }
  }
  return undefined
}

/** Undefined where the plan is sound and every tensor that it uses is there as it should be. */
export const checkTensors = (
  given: AnyPlan,
  rank: number,
  source: TensorDict | undefined,
  destination: TensorDict | undefined
): ReshardError | undefined => {
  if (given.rank !== rank) {
    return reshardError("InvalidPlan", {
      rank,
      detail: `The plan is for rank ${given.rank}.`,
      remedy: "Pass this rank's own plan."
    })
  }
  const [fault] = given.format === "tensorferry.mesh-plan" ? checkMeshPlan(given) : checkPlan(given)
  if (fault !== undefined) {
    return reshardError("InvalidPlan", { rank, paramName: fault.paramName, detail: fault.detail, remedy: fault.remedy })
  }
  const plan = opsOf(given)
  const sent = new Set([
    ...plan.sendOps.map((op) => op.paramName),
    ...plan.recvOps.flatMap((op) => (isContribution(plan, op) ? [op.paramName] : []))
  ])
  const filled = new Set(plan.destinationTensors.map((tensor) => tensor.name))
  const wrong =
    checkSide(rank, "source", plan.sourceTensors, sent, source) ??
    checkSide(rank, "destination", plan.destinationTensors, filled, destination)
  if (wrong !== undefined) return wrong
  for (const [alias, target] of plan.aliases) {
    const own = destination?.tensors.get(alias)
    const shared = destination?.tensors.get(target)
    if (own === undefined || shared === undefined || isQuantized(own) || isQuantized(shared)) continue
    if (own.storage.generation === shared.storage.generation && own.byteOffset === shared.byteOffset) continue
    return reshardError("AliasMismatch", {
      rank,
      paramName: alias,
      detail: `The plan knows it as an alias of ${target}, but the two have memory of their own, so one would stay stale.`,
      remedy: "Share the storage, or leave the alias out of the layout so that both are filled."
    })
  }
  return undefined
}
