/**
 * Proves that mesh plans are plans: every destination element is written exactly once, every box lies inside its tensor,
 * both ends of every bucket list the same chunks at the same places, and every reduction gets each member's part once.
 * Collects every fault instead of the first.
 */

import { canonicalJson } from "../base/Digest.ts"
import { bitsOf, byteLengthOf } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import {
  elementCount,
  equalShapes,
  formatRegion,
  formatShape,
  isInside,
  type Region,
  regionShape
} from "../base/Region.ts"
import type { Bucket } from "../ir/Bucket.ts"
import type { Chunk } from "../ir/Chunk.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import { coverageFault } from "./Coverage.ts"
import { type PlanError, planError } from "./PlanError.ts"

const remedy = "Make the plan again from the layouts; do not edit it."

/** Name of the box that a chunk reduces or contributes to: rank, tensor and place. */
const reductionName = (reducer: Rank, chunk: Chunk): string =>
  `rank ${reducer}, tensor ${chunk.tensor}, ${formatRegion(chunk.srcSliceTuples)}`

/** Faults of one rank's plan by itself. */
export const checkMeshPlan = (plan: MeshPlan): ReadonlyArray<PlanError> => {
  const faults: Array<PlanError> = []
  const wrong = (chunk: Chunk | undefined, detail: string): void => {
    const name = chunk === undefined ? "" : (plan.tensors[chunk.tensor]?.name ?? "")
    faults.push(planError("InvalidPlan", name, [plan.rank], detail, remedy))
  }
  const written = plan.tensors.map(() => [] as Region[])
  /** Boxes that this rank reduces, and the members whose parts it gets. */
  const needed = new Map<string, Chunk>()
  const parts = new Map<string, Array<Rank>>()
  const see = (chunk: Chunk): void => {
    const tensor = plan.tensors[chunk.tensor]
    if (tensor === undefined) {
      wrong(chunk, `A chunk names tensor ${chunk.tensor}, which the plan does not list.`)
      return
    }
    const isSource = chunk.srcIdx.rank === plan.rank
    const isTarget = chunk.dstIdx.some(({ rank }) => rank === plan.rank)
    if (!isSource && !isTarget) wrong(chunk, "A chunk is neither from nor to this rank.")
    const { srcSliceTuples, sliceTuples, chunkShape } = chunk
    for (const [region, shape, isUsed] of [
      [srcSliceTuples, tensor.sourceShape, isSource],
      [sliceTuples, tensor.targetShape, isTarget && chunk.kind !== "none"]
    ] as const) {
      if (!isUsed) continue
      if (region === null || shape === null || !isInside(region, shape)) {
        wrong(chunk, `A chunk touches ${formatRegion(region ?? [])}, outside ${formatShape(shape ?? [])}.`)
      } else if (!equalShapes(regionShape(region), chunkShape)) {
        wrong(chunk, `A chunk of shape ${formatShape(chunkShape)} names ${formatRegion(region)}.`)
      }
    }
    if (isTarget && sliceTuples !== null) written[chunk.tensor]!.push(sliceTuples)
    if (chunk.kind === "none" && isTarget) {
      const name = reductionName(plan.rank, chunk)
      parts.set(name, [...(parts.get(name) ?? []), chunk.srcIdx.rank])
    }
    if (chunk.kind !== "none" && isSource && chunk.sourcePartialGroups.length > 0) {
      needed.set(reductionName(plan.rank, chunk), chunk)
    }
  }
  for (const chunk of plan.localChunks) see(chunk)
  for (const bucket of plan.buckets) checkBucket(bucket, see, (detail) => wrong(bucket.entries[0]?.chunk, detail))
  for (const [at, tensor] of plan.tensors.entries()) {
    if (tensor.targetShape === null) continue
    const fault = coverageFault(tensor.targetShape, written[at]!)
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
  for (const name of parts.keys()) wrong(undefined, `Contributions to ${name} are reduced by nobody.`)
  return faults
}

const checkBucket = (bucket: Bucket, see: (chunk: Chunk) => void, wrong: (detail: string) => void): void => {
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

/** What the ends of a bucket must agree on. */
const sharedForm = (bucket: Bucket): string => canonicalJson({ entries: bucket.entries, totalBytes: bucket.totalBytes })

/** Faults of the plans of all ranks together, those of each plan included. */
export const checkMeshPlans = (plans: ReadonlyArray<MeshPlan>): ReadonlyArray<PlanError> => {
  const faults = plans.flatMap((plan) => [...checkMeshPlan(plan)])
  const wrong = (ranks: ReadonlyArray<Rank>, detail: string) =>
    faults.push(planError("InvalidPlan", "", ranks, detail, remedy))
  const [first] = plans
  for (const plan of plans) {
    if (plan.sharedDigest !== first!.sharedDigest) {
      wrong([first!.rank, plan.rank], "The plans were made from different layouts, tensors or bucket sizes.")
    }
  }
  const ends = new Map<string, Map<Rank, Bucket>>()
  for (const plan of plans) {
    for (const bucket of plan.buckets) {
      const known = ends.get(bucket.key) ?? new Map<Rank, Bucket>()
      if (known.has(plan.rank)) wrong([plan.rank], `Bucket ${bucket.key} appears twice.`)
      known.set(plan.rank, bucket)
      ends.set(bucket.key, known)
    }
  }
  for (const [key, buckets] of ends) {
    const [bucket] = buckets.values()
    const { srcIdx, dstIdx } = bucket!.entries[0]!.chunk
    const wanted = [srcIdx.rank, ...dstIdx.map(({ rank }) => rank)]
    const missing = wanted.filter((rank) => !buckets.has(rank))
    if (missing.length > 0) wrong(missing, `Bucket ${key} is not in the plan of every rank that it names.`)
    for (const [rank, other] of buckets) {
      if (sharedForm(other) !== sharedForm(bucket!))
        wrong([srcIdx.rank, rank], `Bucket ${key} differs between its ends.`)
    }
  }
  return faults
}

/** Payload bytes that one rank sends to others, contributions among them; a broadcast counts once per destination. */
export const sentBytesOf = (plan: MeshPlan): number => {
  let bytes = 0
  for (const { entries } of plan.buckets) {
    for (const { chunk, nbytes } of entries) {
      if (chunk.srcIdx.rank === plan.rank) bytes += nbytes * chunk.dstIdx.length
    }
  }
  return bytes
}
