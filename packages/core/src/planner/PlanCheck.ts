// SPDX-License-Identifier: Apache-2.0
/**
 * Proves that plans are plans, also ones read from a file: every destination element is written exactly once, every
 * region lies inside its tensor, and both ends of every transfer agree. Collects every fault instead of the first.
 */
import { byteLengthOf } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import {
  elementCount,
  equalRegions,
  equalShapes,
  formatRegion,
  formatShape,
  isEmptyRegion,
  isInside,
  regionShape
} from "../base/Region.ts"
import type { PlanTensor, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { coverageFault } from "./Coverage.ts"
import { type PlanError, planError } from "./PlanError.ts"

const remedy = "Make the plan again from the rosters; do not edit it."

const invalid = (name: string, ranks: ReadonlyArray<Rank>, detail: string): PlanError =>
  planError("InvalidPlan", name, ranks, detail, remedy)

/** Faults of one rank's plan by itself. */
export const checkPlan = (plan: ReshardPlan): ReadonlyArray<PlanError> => {
  const faults: Array<PlanError> = []
  const wrong = (name: string, detail: string) => faults.push(invalid(name, [plan.rank], detail))
  const sources = new Map(plan.sourceTensors.map((tensor) => [tensor.name, tensor]))
  const destinations = new Map(plan.destinationTensors.map((tensor) => [tensor.name, tensor]))
  if (sources.size !== plan.sourceTensors.length) wrong("", "Two source tensors have one name.")
  if (destinations.size !== plan.destinationTensors.length) wrong("", "Two destination tensors have one name.")
  for (const [alias, target] of plan.aliases) {
    if (destinations.has(alias)) wrong(alias, `It is an alias of ${target} and a destination of its own.`)
    else if (!destinations.has(target)) wrong(alias, `It is an alias of ${target}, which the plan does not fill.`)
  }
  for (const [ops, tensors, isSend] of [
    [plan.sendOps, sources, true],
    [plan.recvOps, destinations, false]
  ] as const) {
    const seen = new Set<number>()
    for (const op of ops) {
      const kind = isSend ? "Send" : "Receive"
      if (op.isSend !== isSend) wrong(op.paramName, `Task ${op.taskId} is in the wrong list.`)
      if (seen.has(op.taskId)) wrong(op.paramName, `${kind} task ${op.taskId} appears twice.`)
      seen.add(op.taskId)
      if (op.taskId >= plan.taskCount)
        wrong(op.paramName, `Task ${op.taskId} is not below the task count ${plan.taskCount}.`)
      const tensor = tensors.get(op.paramName)
      if (tensor === undefined)
        wrong(op.paramName, `${kind} task ${op.taskId} names a tensor that the plan does not list.`)
      else checkRegion(op, tensor, wrong)
    }
  }
  const received = new Map<string, Array<TransferOp>>()
  for (const op of plan.recvOps) {
    const list = received.get(op.paramName)
    if (list === undefined) received.set(op.paramName, [op])
    else list.push(op)
  }
  for (const tensor of plan.destinationTensors) {
    const ops = received.get(tensor.name) ?? []
    if (ops.some((op) => !isInside(op.mySlice, tensor.shape))) continue
    const fault = coverageFault(
      tensor.shape,
      ops.map((op) => op.mySlice)
    )
    if (fault !== undefined) wrong(tensor.name, fault)
  }
  return faults
}

const checkRegion = (op: TransferOp, tensor: PlanTensor, wrong: (name: string, detail: string) => void): void => {
  if (!isInside(op.mySlice, tensor.shape)) {
    wrong(
      op.paramName,
      `Task ${op.taskId} touches ${formatRegion(op.mySlice)}, outside its shape ${formatShape(tensor.shape)}.`
    )
  } else if (isEmptyRegion(op.mySlice)) {
    wrong(op.paramName, `Task ${op.taskId} moves the empty region ${formatRegion(op.mySlice)}.`)
  } else if (!equalShapes(regionShape(op.mySlice), regionShape(op.peerSlice))) {
    wrong(
      op.paramName,
      `Task ${op.taskId} pairs ${formatRegion(op.mySlice)} with ${formatRegion(op.peerSlice)} of another shape.`
    )
  }
}

/** Faults of the plans of all ranks together, those of each plan included. */
export const checkPlans = (plans: ReadonlyArray<ReshardPlan>): ReadonlyArray<PlanError> => {
  const faults = plans.flatMap((plan) => [...checkPlan(plan)])
  const wrong = (name: string, ranks: ReadonlyArray<Rank>, detail: string) => faults.push(invalid(name, ranks, detail))
  const [first] = plans
  if (first === undefined) return faults
  const ranks = new Set<Rank>()
  for (const plan of plans) {
    if (ranks.has(plan.rank)) wrong("", [plan.rank], "Two plans are for one rank.")
    ranks.add(plan.rank)
    if (plan.rosterDigest !== first.rosterDigest || plan.taskCount !== first.taskCount) {
      wrong("", [first.rank, plan.rank], "The plans were made from different rosters.")
    }
  }
  const sends = new Map<number, { readonly rank: Rank; readonly op: TransferOp; readonly name: string | undefined }>()
  // A destination tied to another tensor is filled from that one where no source has its own name.
  const sent = new Set(plans.flatMap(({ sourceTensors }) => sourceTensors.map(({ resolvedName }) => resolvedName)))
  const globalNames = (tensors: ReadonlyArray<PlanTensor>) =>
    new Map(tensors.map(({ name, resolvedName }) => [name, resolvedName]))
  for (const plan of plans) {
    const names = globalNames(plan.sourceTensors)
    for (const op of plan.sendOps) {
      const other = sends.get(op.taskId)
      if (other !== undefined) {
        wrong(op.paramName, [other.rank, plan.rank], `Task ${op.taskId} is sent by two ranks.`)
      }
      sends.set(op.taskId, { rank: plan.rank, op, name: names.get(op.paramName) })
    }
  }
  const matched = new Set<number>()
  for (const plan of plans) {
    const names = globalNames(plan.destinationTensors)
    for (const op of plan.recvOps) {
      const partner = sends.get(op.taskId)
      if (partner === undefined || partner.op.peerRank !== plan.rank || op.peerRank !== partner.rank) {
        wrong(op.paramName, [plan.rank, op.peerRank], `Receive task ${op.taskId} from rank ${op.peerRank} has no send.`)
        continue
      }
      if (matched.has(op.taskId)) wrong(op.paramName, [plan.rank], `Task ${op.taskId} is received twice.`)
      matched.add(op.taskId)
      const name = names.get(op.paramName)
      if (name !== partner.name && name !== undefined && sent.has(name)) {
        wrong(op.paramName, [partner.rank, plan.rank], `Task ${op.taskId} sends ${partner.name} into ${name}.`)
      }
      const agree =
        equalRegions(op.mySlice, partner.op.peerSlice) &&
        equalRegions(op.peerSlice, partner.op.mySlice) &&
        op.wireDtype === partner.op.wireDtype
      if (!agree) {
        const detail = `Both ends of task ${op.taskId} state different regions or types.`
        wrong(op.paramName, [partner.rank, plan.rank], detail)
      }
    }
  }
  for (const [taskId, { rank, op }] of sends) {
    if (!matched.has(taskId)) {
      wrong(op.paramName, [rank, op.peerRank], `Send task ${taskId} to rank ${op.peerRank} has no receive.`)
    }
  }
  return faults
}

/** Bytes that an operation moves. */
export const opByteLength = (op: TransferOp): number =>
  byteLengthOf(op.wireDtype, elementCount(regionShape(op.mySlice)))
