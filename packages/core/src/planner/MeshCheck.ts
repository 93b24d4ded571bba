// SPDX-License-Identifier: Apache-2.0
/**
 * Proves that mesh plans are plans, also ones read from a file: every destination element is written exactly once, with
 * the element of the same global place; both ends of every bucket list the same chunks at the same places, and every
 * reduction gets each member's part once. Collects every fault instead of the first.
 */
import * as Result from "effect/Result"
import { canonicalJson } from "../base/Digest.ts"
import { bitsOf, byteLengthOf, wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import {
  elementCount,
  equalShapes,
  formatRegion,
  formatShape,
  isInside,
  type Region,
  regionShape,
  type Shape
} from "../base/Region.ts"
import type { Bucket } from "../ir/Bucket.ts"
import type { Chunk } from "../ir/Chunk.ts"
import { type MeshPlan, type MeshTensor, sharedDigestOf } from "../ir/MeshPlan.ts"
import { intervalsAt, type LocalShard, localShard } from "../layout/ShardIntervals.ts"
import { coverageFault } from "./Coverage.ts"
import { meshOps } from "./MeshOps.ts"
import { checkPlans } from "./PlanCheck.ts"
import { type PlanError, planError } from "./PlanError.ts"

const remedy = "Make the plan again from the layouts; do not edit it."

/** Name of the box that a chunk reduces or contributes to: rank, tensor and place. */
const reductionName = (reducer: Rank, chunk: Chunk): string =>
  `rank ${reducer}, tensor ${chunk.tensor}, ${formatRegion(chunk.srcSliceTuples)}`

/** Shards of a plan's tensors on any rank, each worked out once; undefined where the rank has none. */
const makeShards = (plan: MeshPlan) => {
  const known = new Map<string, LocalShard | undefined>()
  return (tensor: MeshTensor, side: "source" | "target", rank: Rank): LocalShard | undefined => {
    const key = `${tensor.map} ${tensor.shape.join()} ${side} ${rank}`
    if (known.has(key)) return known.get(key)
    const map = plan.maps[tensor.map]
    const shard = map === undefined ? undefined : Result.getOrUndefined(localShard(map[side], tensor.shape, rank))
    known.set(key, shard)
    return shard
  }
}

/** Where a box of a shard lies in the whole tensor. The box is inside the shard. */
const globalPlace = (shard: LocalShard, box: Region): string =>
  canonicalJson(box.map((interval, dim) => intervalsAt(shard.intervals[dim]!, [interval])))

/** Faults of one rank's plan by itself. */
export const checkMeshPlan = (plan: MeshPlan): ReadonlyArray<PlanError> => {
  const faults: Array<PlanError> = []
  const wrong = (chunk: Chunk | undefined, detail: string): void => {
    const name = chunk === undefined ? "" : (plan.tensors[chunk.tensor]?.name ?? "")
    faults.push(planError("InvalidPlan", name, [plan.rank], detail, remedy))
  }
  if (sharedDigestOf(plan.bucketBytes, plan.maps, plan.tensors) !== plan.sharedDigest) {
    wrong(undefined, "Its digest is not that of its layouts, tensors and bucket size.")
  }
  const shardOf = makeShards(plan)
  for (const tensor of plan.tensors) {
    for (const [side, stated] of [
      ["source", tensor.sourceShape],
      ["target", tensor.targetShape]
    ] as const) {
      const held = shardOf(tensor, side, plan.rank)?.shape
      if (held === undefined ? stated === null : stated !== null && equalShapes(held, stated)) continue
      const detail = `The ${side} shard is stated as ${formatShape(stated ?? [])}; it is ${formatShape(held ?? [])}.`
      faults.push(planError("InvalidPlan", tensor.name, [plan.rank], detail, remedy))
    }
  }
  const written = plan.tensors.map(() => [] as Region[])
  /** Boxes that this rank reduces, and the members whose parts it gets. */
  const needed = new Map<string, Chunk>()
  const parts = new Map<string, Array<Rank>>()
  /** The global place of a box on one rank; undefined, and reported, where the box is not one of its shard. */
  const placeOf = (chunk: Chunk, shard: LocalShard | undefined, box: Region): string | undefined => {
    const shape: Shape = shard?.shape ?? []
    if (shard === undefined || !isInside(box, shape)) {
      wrong(chunk, `A chunk touches ${formatRegion(box)}, outside ${formatShape(shape)}.`)
      return undefined
    }
    if (!equalShapes(regionShape(box), chunk.chunkShape)) {
      wrong(chunk, `A chunk of shape ${formatShape(chunk.chunkShape)} names ${formatRegion(box)}.`)
      return undefined
    }
    return globalPlace(shard, box)
  }
  const see = (chunk: Chunk): void => {
    const tensor = plan.tensors[chunk.tensor]
    if (tensor === undefined) {
      wrong(chunk, `A chunk names tensor ${chunk.tensor}, which the plan does not list.`)
      return
    }
    const { dstIdx, kind, sliceTuples, srcIdx, srcSliceTuples, transferDtype } = chunk
    const isSource = srcIdx.rank === plan.rank
    const isTarget = dstIdx.some(({ rank }) => rank === plan.rank)
    if (!isSource && !isTarget) wrong(chunk, "A chunk is neither from nor to this rank.")
    const isContribution = kind === "none"
    const wanted = isContribution ? tensor.sourceDtype : wireDType(tensor.sourceDtype, tensor.targetDtype)
    if (transferDtype !== wanted) wrong(chunk, `A chunk travels as ${transferDtype} instead of ${wanted}.`)
    // Contributions end at the same box of the reducing rank's source shard.
    const into = isContribution ? srcSliceTuples : sliceTuples
    if (into === null || isContribution !== (sliceTuples === null) || dstIdx.length === 0) {
      wrong(chunk, `A chunk of kind ${kind} does not say where it ends.`)
      return
    }
    const from = placeOf(chunk, shardOf(tensor, "source", srcIdx.rank), srcSliceTuples)
    for (const { rank } of dstIdx) {
      const to = placeOf(chunk, shardOf(tensor, isContribution ? "source" : "target", rank), into)
      if (from === undefined || to === undefined) return
      if (from !== to) wrong(chunk, `A chunk from ${formatRegion(srcSliceTuples)} ends at another place of the tensor.`)
    }
    if (isTarget && sliceTuples !== null) written[chunk.tensor]!.push(sliceTuples)
    if (isContribution && isTarget) {
      const name = reductionName(plan.rank, chunk)
      parts.set(name, [...(parts.get(name) ?? []), srcIdx.rank])
    }
    if (!isContribution && isSource && chunk.sourcePartialGroups.length > 0) {
      needed.set(reductionName(plan.rank, chunk), chunk)
    }
  }
  for (const chunk of plan.localChunks) see(chunk)
  for (const bucket of plan.buckets) checkBucket(bucket, see, (detail) => wrong(bucket.entries[0]?.chunk, detail))
  for (const [at, tensor] of plan.tensors.entries()) {
    // What was stated may be wrong, which is a fault of its own; regions were held against the shard itself.
    const held = shardOf(tensor, "target", plan.rank)?.shape
    const fault = held === undefined ? undefined : coverageFault(held, written[at]!)
    if (fault !== undefined) faults.push(planError("InvalidPlan", tensor.name, [plan.rank], fault, remedy))
  }
  for (const [name, chunk] of needed) {
    const wanted = chunk.sourcePartialGroups[0]!.ranks.filter((rank) => rank !== plan.rank)
    const got = [...(parts.get(name) ?? [])].sort((a, b) => a - b)
    if (wanted.join() !== got.join()) {
      wrong(chunk, `The reduction of ${name} needs ranks ${wanted.join(", ")} and gets ${got.join(", ") || "none"}.`)
    }
    parts.delete(name)
  }
  for (const name of parts.keys()) wrong(undefined, `Contributions to ${name} are reduced by no rank.`)
  return faults
}

const checkBucket = (bucket: Bucket, see: (chunk: Chunk) => void, wrong: (detail: string) => void): void => {
  if (bucket.entries.length === 0) wrong(`Bucket ${bucket.key} is empty.`)
  let end = 0
  for (const { chunk, offset, nbytes } of bucket.entries) {
    see(chunk)
    if (byteLengthOf(chunk.transferDtype, elementCount(chunk.chunkShape)) !== nbytes) {
      wrong(`Bucket ${bucket.key} states ${nbytes} bytes for ${chunk.transferDtype}${formatShape(chunk.chunkShape)}.`)
    }
    if (offset < end || (offset * 8) % Math.max(8, bitsOf(chunk.transferDtype)) !== 0) {
      wrong(`Bucket ${bucket.key} places a chunk at byte ${offset}, which overlaps another or is not aligned.`)
    }
    end = offset + nbytes
  }
  if (end !== bucket.totalBytes) wrong(`Bucket ${bucket.key} states ${bucket.totalBytes} bytes and fills ${end}.`)
}

/** Faults of the plans of all ranks together, those of each plan included. */
export const checkMeshPlans = (plans: ReadonlyArray<MeshPlan>): ReadonlyArray<PlanError> => {
  const faults = plans.flatMap((plan) => [...checkMeshPlan(plan)])
  return faults.length > 0 ? faults : checkPlans(plans.map(meshOps))
}
