// SPDX-License-Identifier: Apache-2.0
/**
 * What plans between meshes cost before anything runs: bytes between ranks, buffers, and a predicted time. Pure. Plans are
 * added one by one, so that none needs to be kept.
 */
import { byteLengthOf } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { Chunk } from "@tensorferry/core/ir/Chunk"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import {
  bufferLimit,
  defaultInFlight,
  defaultPieceBytes,
  parcelsOf,
  reductionKey,
  type Schedule,
  scheduleOf
} from "@tensorferry/core/mesh/MeshParcels"
import { hostLinkSpeeds, type LinkSpeeds, type Traffic } from "@tensorferry/core/planner/Estimate"

export interface MeshRankEstimate {
  readonly rank: Rank
  readonly sourceBytes: number
  readonly destinationBytes: number
  /** Contributions to reductions among them; a broadcast counts once per destination. */
  readonly sentBytes: number
  readonly receivedBytes: number
  readonly localBytes: number
  /** Parts that the rank reduces, its own among them, in the source's element type. */
  readonly reducedBytes: number
  readonly buckets: number
  /** Most bytes of buffers at once, with a driver that needs dense messages; others need less. */
  readonly bufferBytes: number
  /** Source, destination and buffers together. */
  readonly peakBytes: number
}

export interface MeshEstimate {
  readonly ranks: ReadonlyArray<MeshRankEstimate>
  /** Pairs that exchange something, local copies included, in order of rank; `ops` counts chunks. */
  readonly traffic: ReadonlyArray<Traffic>
  readonly totalBytes: number
  readonly remoteBytes: number
  readonly chunks: number
  readonly buckets: number
  readonly seconds: number
}

export interface MeshEstimator {
  readonly add: (plan: MeshPlan) => void
  readonly finish: () => MeshEstimate
}

const chunkBytes = (chunk: Chunk): number => byteLengthOf(chunk.transferDtype, elementCount(chunk.chunkShape))

const shardBytes = (
  plan: MeshPlan,
  shape: "sourceShape" | "targetShape",
  dtype: "sourceDtype" | "targetDtype"
): number =>
  plan.tensors.reduce((sum, tensor) => {
    const held: Shape | null = tensor[shape]
    return held === null ? sum : sum + byteLengthOf(tensor[dtype], elementCount(held))
  }, 0)

/** Bytes of the boxes that a rank reduces, and of the parts that go into them. */
const reductionsOf = (plan: MeshPlan): { readonly results: number; readonly parts: number } => {
  const seen = new Set<string>()
  let [results, parts] = [0, 0]
  const see = (chunk: Chunk): void => {
    const [group] = chunk.sourcePartialGroups
    if (group === undefined || chunk.kind === "none" || chunk.srcIdx.rank !== plan.rank) return
    const key = reductionKey(chunk)
    if (seen.has(key)) return
    seen.add(key)
    const bytes = byteLengthOf(plan.tensors[chunk.tensor]!.sourceDtype, elementCount(chunk.chunkShape))
    results += bytes
    parts += bytes * group.ranks.length
  }
  for (const chunk of plan.localChunks) see(chunk)
  for (const { entries } of plan.buckets) for (const { chunk } of entries) see(chunk)
  return { results, parts }
}

export const makeMeshEstimator = (speeds: LinkSpeeds = hostLinkSpeeds): MeshEstimator => {
  const traffic: Array<Traffic> = []
  const received = new Map<Rank, number>()
  const ranks: Array<{
    readonly base: Omit<MeshRankEstimate, "receivedBytes" | "bufferBytes" | "peakBytes">
    readonly tensors: MeshPlan["tensors"]
    readonly schedule: Schedule
    readonly results: number
  }> = []
  let [chunks, buckets] = [0, 0]
  const add = (plan: MeshPlan): void => {
    const { rank } = plan
    const byPeer = new Map<Rank, { bytes: number; ops: number }>()
    const count = (to: Rank, bytes: number): void => {
      const entry = byPeer.get(to) ?? { bytes: 0, ops: 0 }
      entry.bytes += bytes
      entry.ops += 1
      byPeer.set(to, entry)
    }
    for (const chunk of plan.localChunks) count(rank, chunkBytes(chunk))
    chunks += plan.localChunks.length
    for (const { entries } of plan.buckets) {
      if (entries[0]!.chunk.srcIdx.rank !== rank) continue
      buckets += 1
      chunks += entries.length
      for (const { chunk, nbytes } of entries) for (const { rank: to } of chunk.dstIdx) count(to, nbytes)
    }
    let [sentBytes, localBytes] = [0, 0]
    for (const [to, { bytes, ops }] of byPeer) {
      traffic.push({ from: rank, to, bytes, ops })
      if (to === rank) localBytes += bytes
      else {
        sentBytes += bytes
        received.set(to, (received.get(to) ?? 0) + bytes)
      }
    }
    const { results, parts } = reductionsOf(plan)
    ranks.push({
      base: {
        rank,
        sourceBytes: shardBytes(plan, "sourceShape", "sourceDtype"),
        destinationBytes: shardBytes(plan, "targetShape", "targetDtype"),
        sentBytes,
        localBytes,
        reducedBytes: parts,
        buckets: plan.buckets.length
      },
      tensors: plan.tensors,
      schedule: scheduleOf(rank, parcelsOf(plan, defaultPieceBytes(plan)), defaultInFlight),
      results
    })
  }
  const finish = (): MeshEstimate => {
    const reductionWaves = ranks.reduce((most, { schedule }) => Math.max(most, schedule.reductions.length), 0)
    const estimates = ranks.map(({ base, tensors, schedule, results }): MeshRankEstimate => {
      const bufferBytes = results + bufferLimit({ tensors, isPacked: true }, schedule, reductionWaves)
      return {
        ...base,
        receivedBytes: received.get(base.rank) ?? 0,
        bufferBytes,
        peakBytes: base.sourceBytes + base.destinationBytes + bufferBytes
      }
    })
    traffic.sort((a, b) => a.from - b.from || a.to - b.to)
    const totalBytes = traffic.reduce((sum, entry) => sum + entry.bytes, 0)
    const localBytes = estimates.reduce((sum, entry) => sum + entry.localBytes, 0)
    const seconds = estimates.reduce(
      (most, { sentBytes, receivedBytes, localBytes: kept, reducedBytes }) =>
        Math.max(most, Math.max(sentBytes, receivedBytes) / speeds.remote + (kept + reducedBytes) / speeds.local),
      0
    )
    return { ranks: estimates, traffic, totalBytes, remoteBytes: totalBytes - localBytes, chunks, buckets, seconds }
  }
  return { add, finish }
}
