// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold for the mesh plans of any pair of layouts, each law as a function that lists its violations. Elements are
 * numbered and followed one by one; nothing is shared with the planner.
 */

import { bitsOf, wireDType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { SourceChoice } from "@tensorferry/core/ir/M2MMap"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import { type MeshLayout, type PartialOp, resolveDims } from "@tensorferry/core/layout/Placement"
import { indexLowering, lowerRank } from "@tensorferry/core/planner/Lowering"
import { checkMeshPlans } from "@tensorferry/core/planner/MeshCheck"
import { indexMap } from "@tensorferry/core/planner/MeshIndex"
import { planMesh, routesOf } from "@tensorferry/core/planner/MeshPlanner"
import * as Result from "effect/Result"
import type { ElementValue } from "../values/casts.ts"
import { reduction } from "../values/reductions.ts"
import type { Violations } from "./laws.ts"
import type { MeshPair } from "./meshArbitraries.ts"
import { arrayOf, heldElements, runMeshPlans, valuesOf } from "./meshOracle.ts"

const opOf = (layout: MeshLayout): PartialOp | undefined =>
  layout.placements.find((placement) => placement._tag === "Partial")?.op

const coordinateOf = (layout: MeshLayout, rank: Rank): ReadonlyArray<number> => {
  const out: Array<number> = []
  let rest = layout.mesh.ranks.indexOf(rank)
  for (const length of [...layout.mesh.shape].reverse()) {
    out.unshift(rest % length)
    rest = Math.floor(rest / length)
  }
  return out
}

/** Which contribution of a partial layout a rank holds: its place along the partial dimensions. */
const contributionOf = (layout: MeshLayout, rank: Rank): number =>
  coordinateOf(layout, rank).reduce(
    (place, at, dim) => (layout.placements[dim]!._tag === "Partial" ? place * layout.mesh.shape[dim]! + at : place),
    0
  )

const groupSize = (layout: MeshLayout): number =>
  layout.placements.reduce((size, { _tag }, dim) => (_tag === "Partial" ? size * layout.mesh.shape[dim]! : size), 1)

/**
 * Values whose reductions are exact in every order and type: whole numbers for sums, powers of two for products. Elements
 * differ from their neighbours, and members from each other.
 */
const valueOf = (op: PartialOp | undefined, element: number, contribution: number): number => {
  if (op === undefined) return 1 + (element % 113)
  if (op === "product") return (element + contribution) % 7 === 0 ? 2 : 1
  return 1 + ((element * 5 + contribution * 3) % 7)
}

const asElement = (value: number, dtype: string): ElementValue => (dtype === "int64" ? BigInt(value) : value)

/** Plans of all ranks that either side names. */
export const meshPlansOf = (
  pair: MeshPair,
  sourceChoice: SourceChoice,
  bucketBytes: number
): Result.Result<ReadonlyArray<MeshPlan>, { readonly message: string }> => {
  const { shape, sourceDtype, targetDtype } = pair
  const lowering = Result.flatMap(
    planMesh(pair.source, pair.target, { sourceChoice, tensorRank: shape.length }),
    (map) => indexLowering([{ name: "weight", shape, sourceDtype, targetDtype, map }], { bucketBytes })
  )
  const ranks = [...new Set([...pair.source.mesh.ranks, ...pair.target.mesh.ranks])].sort((a, b) => a - b)
  return Result.map(lowering, (index) => ranks.map((rank) => lowerRank(index, rank)))
}

/** Values, single writes, agreement of both ends, and wire bytes, for one choice and one bucket size. */
export const meshTransferLaw = (pair: MeshPair, sourceChoice: SourceChoice, bucketBytes: number): Violations => {
  const { shape, sourceDtype, targetDtype } = pair
  const planned = meshPlansOf(pair, sourceChoice, bucketBytes)
  if (Result.isFailure(planned)) return [`refused: ${planned.failure.message}`]
  const plans = planned.success
  const faults: Array<string> = checkMeshPlans(plans).map(({ message }) => message)
  const source = Result.getOrThrow(resolveDims(pair.source, shape.length))
  const target = Result.getOrThrow(resolveDims(pair.target, shape.length))
  const op = opOf(source)
  const held = new Map(source.mesh.ranks.map((rank) => [rank, heldElements(source, shape, rank)]))
  const outcome = runMeshPlans(plans, (rank) => {
    const contribution = contributionOf(source, rank)
    const numbers = held.get(rank)!.map((element) => asElement(valueOf(op, element, contribution), sourceDtype))
    return arrayOf(sourceDtype, plans.find((plan) => plan.rank === rank)!.tensors[0]!.sourceShape!, numbers)
  })
  faults.push(...outcome.faults)
  const members = groupSize(source)
  const combine = op === undefined ? undefined : reduction(sourceDtype, op)!
  const expected = (element: number): ElementValue => {
    if (combine === undefined) return asElement(valueOf(undefined, element, 0), sourceDtype)
    return combine(Array.from({ length: members }, (_, at) => asElement(valueOf(op, element, at), sourceDtype)))
  }
  const wire = wireDType(sourceDtype, targetDtype)
  let [wanted, own] = [0, 0]
  for (const rank of target.mesh.ranks) {
    const elements = heldElements(target, shape, rank)
    const kept = new Set(held.get(rank) ?? [])
    wanted += elements.length
    own += elements.filter((element) => kept.has(element)).length
    const got = outcome.targets.get(rank)?.[0]
    if (got === null || got === undefined) {
      faults.push(`rank ${rank} holds nothing`)
      continue
    }
    const values = valuesOf(got)
    const cast = (element: number): ElementValue => {
      const [inSource] = valuesOf(arrayOf(sourceDtype, [], [expected(element)]))
      const [onWire] = valuesOf(arrayOf(wire, [], [inSource!]))
      return valuesOf(arrayOf(targetDtype, [], [onWire!]))[0]!
    }
    const wrong = elements.findIndex((element, at) => cast(element) !== values[at])
    if (wrong >= 0) {
      faults.push(`rank ${rank}: element ${wrong} is ${values[wrong]} instead of ${cast(elements[wrong]!)}`)
    }
    if (values.length !== elements.length) faults.push(`rank ${rank} holds ${values.length} of ${elements.length}`)
  }
  const total = shape.reduce((product, length) => product * length, 1)
  const delivered = outcome.wireBytes - outcome.contributedBytes
  const wireBytes = bitsOf(wire) / 8
  const contributedOnce = ((members - 1) * total * bitsOf(sourceDtype)) / 8
  if (sourceChoice === "balanced") {
    if (op === undefined && delivered !== (wanted - own) * wireBytes) {
      faults.push(`${delivered} bytes are delivered instead of ${(wanted - own) * wireBytes}`)
    }
    if (outcome.contributedBytes !== contributedOnce) {
      faults.push(`${outcome.contributedBytes} bytes are contributed instead of ${contributedOnce}`)
    }
  }
  const replicas = target.mesh.ranks.length
  if (delivered > wanted * wireBytes || outcome.contributedBytes > contributedOnce * replicas) {
    faults.push(`${delivered} + ${outcome.contributedBytes} bytes are on the wire`)
  }
  return faults
}

/**
 * Balanced choice: of the deliveries of one source shard, each of its r holders makes at most ceil(m / r); of a partial
 * source's cells, each ships at most ceil(c / r). Counted in the map's cells.
 */
export const meshBalanceLaw = (pair: MeshPair): Violations => {
  const planned = planMesh(pair.source, pair.target, { tensorRank: pair.shape.length })
  if (Result.isFailure(planned)) return [`refused: ${planned.failure.message}`]
  const map = planned.success
  const isPartial = opOf(map.source) !== undefined
  const made = new Map<Rank, number>()
  const shards = new Map<string, { total: number; readonly holders: Array<Rank> }>()
  const shardOf = (rank: Rank): string => JSON.stringify(heldElements(map.source, map.cellCounts, rank))
  for (const rank of map.source.mesh.ranks) {
    const shard = shards.get(shardOf(rank)) ?? { total: 0, holders: [] }
    shard.holders.push(rank)
    shards.set(shardOf(rank), shard)
  }
  const seen = new Set<string>()
  for (const { kind, src, dsts } of routesOf(indexMap(map))) {
    if (kind === "none") continue
    // Of a partial source a cell counts once, shipped to others, kept, or both.
    const cell = `${src.rank}:${src.cell.join()}`
    const counted = isPartial ? Number(!seen.has(cell)) : kind === "local" ? 0 : dsts.length
    seen.add(cell)
    made.set(src.rank, (made.get(src.rank) ?? 0) + counted)
  }
  const faults: Array<string> = []
  for (const { holders } of shards.values()) {
    const counts = holders.map((rank) => made.get(rank) ?? 0)
    const total = counts.reduce((sum, count) => sum + count, 0)
    const share = Math.ceil(total / holders.length)
    for (const [at, rank] of holders.entries()) {
      if (counts[at]! > share) faults.push(`rank ${rank} delivers ${counts[at]} of ${total}, more than ${share}`)
    }
  }
  return faults
}

/** True where the types of a pair can be reduced as its source asks. */
export const isReducible = (pair: MeshPair): boolean => {
  const op = opOf(pair.source)
  return op === undefined || reduction(pair.sourceDtype, op) !== undefined
}
