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
  lengthOf,
  type Region,
  regionShape,
  type Shape
} from "../base/Region.ts"
import type { PlanTensor, Reduction, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { intervalsAt } from "../layout/ShardIntervals.ts"
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
  for (const { name, shape, place } of [...plan.sourceTensors, ...plan.destinationTensors]) {
    if (place === undefined || placeLength(place) === shape[place.dim]) continue
    wrong(name, `Its place holds ${placeLength(place)} indices of dimension ${place.dim} of ${formatShape(shape)}.`)
  }
  checkReductions(plan, sources, wrong)
  for (const [ops, tensors, isSend] of [
    [plan.sendOps, sources, true],
    [plan.recvOps, destinations, false]
  ] as const) {
    const seen = new Set<string>()
    for (const op of ops) {
      const kind = isSend ? "Send" : "Receive"
      if (op.isSend !== isSend) wrong(op.paramName, `Task ${op.taskId} is in the wrong list.`)
      const channel = `${op.peerRank} ${op.taskId}`
      if (seen.has(channel)) wrong(op.paramName, `${kind} task ${op.taskId} appears twice.`)
      seen.add(channel)
      if (op.taskId >= plan.taskCount)
        wrong(op.paramName, `Task ${op.taskId} is not below the task count ${plan.taskCount}.`)
      // Contributions arrive for a source tensor.
      const tensor = (!isSend && op.reduction !== undefined ? sources : tensors).get(op.paramName)
      if (tensor === undefined)
        wrong(op.paramName, `${kind} task ${op.taskId} names a tensor that the plan does not list.`)
      else checkRegion(op, tensor, wrong)
    }
  }
  const received = new Map<string, Array<TransferOp>>()
  for (const op of plan.recvOps) {
    if (op.reduction !== undefined) continue
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

const placeLength = ({ intervals }: NonNullable<PlanTensor["place"]>): number =>
  intervals.reduce((length, interval) => length + lengthOf(interval), 0)

/** Where a region of a rank's tensor lies in the whole tensor; undefined where the plan does not say. */
const globalPlace = (region: Region, tensor: PlanTensor | undefined): string | undefined => {
  const place = tensor?.place
  if (place === undefined) return undefined
  return JSON.stringify(
    region.map((interval, dim) => (dim === place.dim ? intervalsAt(place.intervals, [interval]) : [interval]))
  )
}

const isGroup = (ranks: ReadonlyArray<Rank>): boolean => ranks.every((rank, at) => at === 0 || ranks[at - 1]! < rank)

/** Every contribution comes once, from each other member of the group, and goes to the rank that reduces. */
const checkReductions = (
  plan: ReshardPlan,
  sources: ReadonlyMap<string, PlanTensor>,
  wrong: (name: string, detail: string) => void
): void => {
  const { rank, reductions = [], sendOps, recvOps } = plan
  const parts = reductions.map(() => [] as Array<Rank>)
  for (const { paramName, region, ranks, root } of reductions) {
    const tensor = sources.get(paramName)
    if (tensor === undefined || !isInside(region, tensor.shape)) {
      wrong(paramName, `A reduction of ${formatRegion(region)} is not inside a source tensor of the plan.`)
    }
    if (!isGroup(ranks) || !ranks.includes(rank) || !ranks.includes(root)) {
      wrong(paramName, `A reduction over ranks ${ranks.join(", ")} on rank ${root} does not have this rank in order.`)
    }
  }
  if (reductions.length > 0 && (plan.reductionBytes ?? 0) === 0) wrong("", "Its reductions have no bytes.")
  for (const op of [...sendOps, ...recvOps]) {
    if (op.reduction === undefined) continue
    const reduction = reductions[op.reduction]
    const fits = (box: Reduction) => box.paramName === op.paramName && equalRegions(box.region, op.mySlice)
    if (reduction === undefined || !fits(reduction)) {
      wrong(op.paramName, `Task ${op.taskId} names reduction ${op.reduction}, which is of something else.`)
    } else if (!op.isSend) parts[op.reduction]!.push(op.peerRank)
    else if (reduction.root !== rank && reduction.root !== op.peerRank) {
      wrong(op.paramName, `Task ${op.taskId} contributes to rank ${op.peerRank}, but rank ${reduction.root} reduces.`)
    }
    if (reduction !== undefined && (!op.isSend || reduction.root !== rank)) {
      const held = sources.get(op.paramName)?.dtype
      if (held !== op.wireDtype) wrong(op.paramName, `Task ${op.taskId} contributes ${op.wireDtype} to ${held}.`)
    }
  }
  for (const [at, { paramName, ranks, root }] of reductions.entries()) {
    const wanted = root === rank ? ranks.filter((member) => member !== rank) : []
    const got = parts[at]!.sort((a, b) => a - b)
    if (wanted.join() !== got.join()) {
      wrong(
        paramName,
        `Reduction ${at} needs the parts of ranks ${wanted.join(", ") || "none"} and gets ${got.join(", ") || "none"}.`
      )
    }
  }
}

const isPermutation = (axes: ReadonlyArray<number>, dims: number): boolean =>
  axes.length === dims && new Set(axes).size === dims && axes.every((axis) => axis < dims)

const checkRegion = (op: TransferOp, tensor: PlanTensor, wrong: (name: string, detail: string) => void): void => {
  if (!isInside(op.mySlice, tensor.shape)) {
    wrong(
      op.paramName,
      `Task ${op.taskId} touches ${formatRegion(op.mySlice)}, outside its shape ${formatShape(tensor.shape)}.`
    )
  } else if (isEmptyRegion(op.mySlice)) {
    wrong(op.paramName, `Task ${op.taskId} moves the empty region ${formatRegion(op.mySlice)}.`)
  } else if (op.axes !== undefined && !isPermutation(op.axes, op.mySlice.length)) {
    wrong(op.paramName, `Task ${op.taskId} has axes [${op.axes.join(",")}], which are not those of its region.`)
  } else if (!equalShapes(...endShapes(op))) {
    wrong(
      op.paramName,
      `Task ${op.taskId} pairs ${formatRegion(op.mySlice)} with ${formatRegion(op.peerSlice)} of another shape.`
    )
  }
}

/** Shapes of both ends, dimensions in the order of the destination. */
const endShapes = ({ mySlice, peerSlice, isSend, axes }: TransferOp): readonly [Shape, Shape] => {
  const [from, to] = (isSend ? [mySlice, peerSlice] : [peerSlice, mySlice]).map(regionShape) as [Shape, Shape]
  return [axes === undefined ? from : axes.map((dim) => from[dim]!), to]
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
  // What a plan says by itself must be sound before both ends are compared.
  if (faults.length > 0) return faults
  const sends = new Map<string, { readonly rank: Rank; readonly op: TransferOp; readonly tensor: PlanTensor }>()
  // A destination tied to another tensor is filled from that one where no source has its own name.
  const sent = new Set(plans.flatMap(({ sourceTensors }) => sourceTensors.map(({ resolvedName }) => resolvedName)))
  const byName = (tensors: ReadonlyArray<PlanTensor>) => new Map(tensors.map((tensor) => [tensor.name, tensor]))
  for (const plan of plans) {
    const sources = byName(plan.sourceTensors)
    for (const op of plan.sendOps) {
      sends.set(`${plan.rank} ${op.peerRank} ${op.taskId}`, { rank: plan.rank, op, tensor: sources.get(op.paramName)! })
    }
  }
  const matched = new Set<string>()
  for (const plan of plans) {
    const sources = byName(plan.sourceTensors)
    const destinations = byName(plan.destinationTensors)
    for (const op of plan.recvOps) {
      const tensor = (op.reduction === undefined ? destinations : sources).get(op.paramName)!
      const channel = `${op.peerRank} ${plan.rank} ${op.taskId}`
      const partner = sends.get(channel)
      if (partner === undefined) {
        wrong(op.paramName, [plan.rank, op.peerRank], `Receive task ${op.taskId} from rank ${op.peerRank} has no send.`)
        continue
      }
      matched.add(channel)
      const [name, from] = [tensor.resolvedName, partner.tensor.resolvedName]
      if (name !== from && sent.has(name)) {
        wrong(op.paramName, [partner.rank, plan.rank], `Task ${op.taskId} sends ${from} into ${name}.`)
      }
      const places = [globalPlace(partner.op.mySlice, partner.tensor), globalPlace(op.mySlice, tensor)]
      // A side that states no packed blocks may be cut in those of the other all the same.
      const isComparable = op.axes === undefined && partner.tensor.place?.blocks === tensor.place?.blocks
      if (isComparable && places[0] !== places[1] && !places.includes(undefined)) {
        const detail = `Task ${op.taskId} sends ${formatRegion(partner.op.mySlice)} of rank ${partner.rank} to another place of the tensor.`
        wrong(op.paramName, [partner.rank, plan.rank], detail)
      }
      const agree =
        equalRegions(op.mySlice, partner.op.peerSlice) &&
        equalRegions(op.peerSlice, partner.op.mySlice) &&
        op.wireDtype === partner.op.wireDtype &&
        op.axes?.join() === partner.op.axes?.join()
      if (!agree) {
        const detail = `Both ends of task ${op.taskId} state different regions or types.`
        wrong(op.paramName, [partner.rank, plan.rank], detail)
      }
    }
  }
  for (const [channel, { rank, op }] of sends) {
    if (!matched.has(channel)) {
      wrong(op.paramName, [rank, op.peerRank], `Send task ${op.taskId} to rank ${op.peerRank} has no receive.`)
    }
  }
  return faults
}

/** Bytes that an operation moves. */
export const opByteLength = (op: TransferOp): number =>
  byteLengthOf(op.wireDtype, elementCount(regionShape(op.mySlice)))
