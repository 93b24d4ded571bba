// SPDX-License-Identifier: Apache-2.0
/**
 * How a version lies on the members of a fleet whose replicas, or whose source, are several processes: which bytes go which way,
 * where they lie on this rank, and for which of them it answers. Pure.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import type { PlanTensor } from "@tensorferry/core/ir/ReshardPlan"
import type { Roster } from "@tensorferry/core/layout/Roster"
import { indexRosters, type PlanIndex, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { isContiguous, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import type { BundleBytes, Weights } from "../edges/Pieces.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import { type PlanDemand, planDemand } from "../fanout/planDemand.ts"
import { byteView, cutView } from "./cutView.ts"
import { type RegionsOfBundle, rankBundles } from "./RankBundles.ts"
import { sharesOf, type TensorShare } from "./Shares.ts"

/** What all members state alike where a replica is more than one process, or the source is. */
export interface FleetLayout {
  /** What the ranks of the source hold, such as those of a training job. */
  readonly source: Roster
  /** What the ranks of replicas hold: of all that may ever run. None of them is a rank of the source. */
  readonly destination: Roster
  /** The ranks that are one replica together, for each replica. */
  readonly replicas: ReadonlyArray<ReadonlyArray<Rank>>
}

/** Bundles of one demand: those from the source, or those from replicas that have a version to ones that join. */
export interface ShardDemand {
  /** Which bundles there are, who holds them and who wants them. */
  readonly demand: PlanDemand
  /** What the bundle is called on edges. */
  readonly keyOf: (bundle: number) => string
}

/** A layout as one rank sees it. */
export interface ShardLayout {
  readonly fromSource: ShardDemand
  readonly fromReplicas: ShardDemand
  /** By name of the bundle, where it lies on this rank. */
  readonly regions: ReadonlyMap<string, RegionsOfBundle>
  /** The ranks that are one with this one: its replica, or the source. */
  readonly group: ReadonlyArray<Rank>
  /** What this rank answers for. */
  readonly shares: ReadonlyArray<TensorShare>
  /** Global names of all that the group holds. */
  readonly names: ReadonlySet<string>
  /** What this rank has to hold. */
  readonly tensors: ReadonlyArray<PlanTensor>
}

const invalid = (detail: string, remedy: string, ranks: ReadonlyArray<Rank> = []) =>
  Result.fail(fleetError("InvalidOptions", ranks, { detail, remedy }))

const indexOf = (source: Roster, destination: Roster): Result.Result<PlanIndex, FleetError> =>
  Result.mapError(indexRosters(source, destination), ({ message }) =>
    fleetError("InvalidOptions", [], { detail: message, remedy: "Give all members the layouts of one model." })
  )

/** Fails where replicas and destination are not the same ranks, or a rank is on both sides. */
const checkRanks = ({ source, destination, replicas }: FleetLayout): Result.Result<undefined, FleetError> => {
  const remedy = "Name every rank of the destination in one replica, and no other."
  const ranks = replicas.flat()
  const known = new Set(destination.members.map(({ rank }) => rank))
  const odd = ranks.find((rank, at) => !known.has(rank) || ranks.indexOf(rank) !== at)
  if (odd !== undefined) return invalid(`Rank ${odd} is in two replicas, or holds nothing.`, remedy, [odd])
  const missing = [...known].find((rank) => !ranks.includes(rank))
  if (missing !== undefined) return invalid(`Rank ${missing} is in no replica.`, remedy, [missing])
  const both = source.members.find(({ rank }) => known.has(rank))
  if (both === undefined) return Result.succeed(undefined)
  return invalid(
    `Rank ${both.rank} is one of the source and one of a replica.`,
    "Give a process of each a rank of its own.",
    [both.rank]
  )
}

/** Fails where a tensor is of another type on the other side: its bytes would not compare. */
const checkForms = (
  from: ReadonlyArray<PlanTensor>,
  to: ReadonlyArray<PlanTensor>
): Result.Result<undefined, FleetError> => {
  const known = new Map(from.map((tensor) => [tensor.resolvedName, tensor.dtype]))
  for (const { resolvedName, dtype } of to) {
    const other = known.get(resolvedName) ?? dtype
    if (other !== dtype) {
      return invalid(
        `Tensor ${resolvedName} is ${other} on the source and ${dtype} on a replica.`,
        "Let sources hold what replicas hold; a fleet moves bytes, and changes no form."
      )
    }
    if (bitsOf(dtype) % 8 !== 0)
      return invalid(`Tensor ${resolvedName} has elements that are no whole bytes.`, "View packed elements as uint8.")
  }
  return Result.succeed(undefined)
}

/** A layout as this rank sees it. Fails with InvalidOptions, equally on every rank but where this one is at fault. */
export const indexLayout = (
  layout: FleetLayout,
  rank: Rank,
  role: "source" | "replica"
): Result.Result<ShardLayout, FleetError> =>
  Result.gen(function* () {
    yield* checkRanks(layout)
    const { source, destination, replicas } = layout
    const update = yield* indexOf(source, destination)
    const again = yield* indexOf(destination, destination)
    const group =
      role === "source"
        ? source.members.map((member) => member.rank)
        : (replicas.find((ranks) => ranks.includes(rank)) ?? [])
    if (!group.includes(rank)) {
      return yield* invalid(`Rank ${rank} is none of a ${role}.`, "Name it in the layout.", [rank])
    }
    const tensorsOf = (each: Rank): ReadonlyArray<PlanTensor> => {
      const plan = planRank(update, each)
      return role === "source" ? plan.sourceTensors : plan.destinationTensors
    }
    const held = new Map(group.map((each) => [each, tensorsOf(each)] as const))
    const [first] = role === "source" ? destination.members : source.members
    if (first !== undefined) {
      const other = planRank(update, first.rank)
      yield* checkForms(
        role === "source" ? [...held.values()].flat() : other.sourceTensors,
        role === "source" ? other.destinationTensors : [...held.values()].flat()
      )
    }
    const fromSource: ShardDemand = { demand: planDemand(update), keyOf: (bundle) => `source ${bundle}` }
    const fromReplicas: ShardDemand = { demand: planDemand(again), keyOf: (bundle) => `replicas ${bundle}` }
    const regions = new Map<string, RegionsOfBundle>()
    for (const [index, { demand, keyOf }] of [
      [update, fromSource],
      [again, fromReplicas]
    ] as const) {
      if (role === "source" && index === again) continue
      for (const [bundle, placed] of rankBundles(index, demand, rank)) regions.set(keyOf(bundle), placed)
    }
    const shares = sharesOf(group, (each) => held.get(each)!)
    return {
      fromSource,
      fromReplicas,
      regions,
      group,
      shares: shares.get(rank)!,
      names: new Set([...held.values()].flatMap((tensors) => tensors.map(({ resolvedName }) => resolvedName))),
      tensors: held.get(rank)!
    }
  })

/** Fails with InvalidOptions where tensors are not those of the layout. */
export const checkShards = ({ tensors }: ShardLayout, weights: Weights): Result.Result<undefined, FleetError> => {
  for (const { name, dtype, shape } of tensors) {
    const given = weights.get(name)
    const is = given === undefined ? "not given" : `${given.dtype}${formatShape(given.shape)}`
    if (given !== undefined && given.dtype === dtype && equalShapes(given.shape, shape) && isContiguous(given)) continue
    return invalid(
      `Tensor ${name} is ${is}; the layout says ${dtype}${formatShape(shape)}, contiguous.`,
      "Give the tensors that the layout names for this rank."
    )
  }
  return Result.succeed(undefined)
}

/** The bytes of bundles in these tensors. */
export const shardBytes = (regions: ReadonlyMap<string, RegionsOfBundle>, weights: Weights): BundleBytes => {
  const views = new Map<string, ReadonlyArray<Tensor>>()
  return (bundle, start, end) => {
    const placed = regions.get(bundle) ?? []
    let ofBundle = views.get(bundle)
    if (ofBundle === undefined) {
      ofBundle = placed.map(({ name, region }) => byteView(weights.get(name)!, region))
      views.set(bundle, ofBundle)
    }
    // The last region that begins at or before the start.
    let [low, high] = [0, placed.length]
    while (high - low > 1) {
      const middle = (low + high) >> 1
      if (placed[middle]!.offset <= start) low = middle
      else high = middle
    }
    const pieces: Array<Tensor> = []
    for (let at = low; at < placed.length && placed[at]!.offset < end; at++) {
      const { offset, bytes } = placed[at]!
      pieces.push(...cutView(ofBundle[at]!, Math.max(0, start - offset), Math.min(bytes, end - offset)))
    }
    return pieces
  }
}
