// SPDX-License-Identifier: Apache-2.0
/**
 * Lowers a plan between meshes to the form that is carried out: its chunks as transfers, and what is reduced before it
 * travels. Pure, and equal at both ends of every transfer, since buckets are listed in one order that all ranks share.
 */
import { byteLengthOf, type DType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, formatRegion, type Region, type Shape } from "../base/Region.ts"
import type { Chunk } from "../ir/Chunk.ts"
import type { M2MMap } from "../ir/M2MMap.ts"
import type { MeshPlan, MeshTensor } from "../ir/MeshPlan.ts"
import type { PlanTensor, Reduction, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"

/** Buckets of one rank's traffic to another that are in memory at once. */
export const bucketsPerWave = 2
/** Buckets may be smaller, but waves of them would be runs without end. */
const leastBucketBytes = 64 * 1024

const tensorsOf = (
  plan: MeshPlan,
  dtype: "sourceDtype" | "targetDtype",
  shape: "sourceShape" | "targetShape"
): ReadonlyArray<PlanTensor> =>
  plan.tensors.flatMap((tensor) => {
    const held: Shape | null = tensor[shape]
    return held === null ? [] : [{ name: tensor.name, resolvedName: tensor.name, shape: held, dtype: tensor[dtype] }]
  })

/** No shard of the tensor on the source's mesh is larger. */
const largestShard = ({ cellCounts, sourceNumSlicers }: M2MMap, { shape, sourceDtype }: MeshTensor): number =>
  byteLengthOf(
    sourceDtype,
    elementCount(
      shape.map((length, dim) =>
        Math.min(length, (sourceNumSlicers[dim] ?? 1) * Math.ceil(length / (cellCounts[dim] ?? 1)))
      )
    )
  )

const otherThan = (dtype: DType, wireDtype: DType) => (dtype === wireDtype ? {} : { peerDtype: dtype })

const lower = (plan: MeshPlan): ReshardPlan => {
  const { rank } = plan
  const [sendOps, recvOps]: [Array<TransferOp>, Array<TransferOp>] = [[], []]
  const reductions: Array<Reduction> = []
  const known = new Map<string, number>()
  /** Transfers so far, by sender and receiver. */
  const counts = new Map<string, number>()

  const reductionOf = (chunk: Chunk, paramName: string): { readonly reduction?: number } => {
    const [group] = chunk.sourcePartialGroups
    if (group === undefined) return {}
    const root = (chunk.kind === "none" ? chunk.dstIdx[0] : chunk.srcIdx)?.rank ?? chunk.srcIdx.rank
    const key = `${chunk.tensor} ${formatRegion(chunk.srcSliceTuples)} ${root}`
    const at = known.get(key) ?? reductions.length
    if (at === reductions.length) {
      known.set(key, at)
      reductions.push({ paramName, region: chunk.srcSliceTuples, ranks: group.ranks, op: group.op, root })
    }
    return { reduction: at }
  }

  const add = (chunk: Chunk, to: Rank): void => {
    const from = chunk.srcIdx.rank
    const channel = `${from} ${to}`
    const taskId = counts.get(channel) ?? 0
    counts.set(channel, taskId + 1)
    if (chunk.chunkShape.includes(0)) return
    const tensor = plan.tensors[chunk.tensor]
    // A plan from a file may name anything until it is proved.
    if (tensor === undefined) return
    const isContribution = chunk.kind === "none"
    const [mine, theirs]: readonly [Region, Region] = [chunk.srcSliceTuples, chunk.sliceTuples ?? chunk.srcSliceTuples]
    const common = { paramName: tensor.name, taskId, wireDtype: chunk.transferDtype }
    if (from === rank) {
      const held = isContribution ? {} : otherThan(tensor.targetDtype, chunk.transferDtype)
      const reduced = reductionOf(chunk, tensor.name)
      sendOps.push({ ...common, ...held, ...reduced, peerRank: to, isSend: true, mySlice: mine, peerSlice: theirs })
    }
    if (to === rank) {
      const held = isContribution ? {} : otherThan(tensor.sourceDtype, chunk.transferDtype)
      const reduced = isContribution ? reductionOf(chunk, tensor.name) : {}
      recvOps.push({ ...common, ...held, ...reduced, peerRank: from, isSend: false, mySlice: theirs, peerSlice: mine })
    }
  }

  for (const chunk of plan.localChunks) add(chunk, rank)
  for (const { entries } of plan.buckets) {
    for (const { chunk } of entries) {
      const { srcIdx, dstIdx } = chunk
      for (const { rank: to } of dstIdx) if (srcIdx.rank === rank || to === rank) add(chunk, to)
    }
  }
  const partial = plan.tensors.filter(({ map }) => (plan.maps[map]?.sourcePartialReductions.length ?? 0) > 0)
  const cells = plan.tensors.reduce(
    (sum, { map }) => sum + (plan.maps[map]?.cellCounts ?? []).reduce((product, count) => product * count, 1),
    0
  )
  return {
    format: "tensorferry.reshard-plan",
    version: 2,
    rank,
    sourceTensors: tensorsOf(plan, "sourceDtype", "sourceShape"),
    destinationTensors: tensorsOf(plan, "targetDtype", "targetShape"),
    aliases: [],
    sendOps,
    recvOps,
    ...(reductions.length === 0 ? {} : { reductions }),
    ...(partial.length === 0
      ? {}
      : { reductionBytes: partial.reduce((sum, tensor) => sum + largestShard(plan.maps[tensor.map]!, tensor), 0) }),
    waveBytes: bucketsPerWave * Math.max(plan.bucketBytes, leastBucketBytes),
    // Each cell travels to a rank once, as a value or as a contribution.
    taskCount: 2 * cells,
    rosterDigest: plan.sharedDigest
  }
}

const lowered = new WeakMap<MeshPlan, ReshardPlan>()

/** The plan's transfers and reductions. One plan gives the very same value each time. */
export const meshOps = (plan: MeshPlan): ReshardPlan => {
  const before = lowered.get(plan)
  if (before !== undefined) return before
  const made = lower(plan)
  lowered.set(plan, made)
  return made
}

/** A plan of either planner. */
export type AnyPlan = ReshardPlan | MeshPlan

/** Either kind in the form that is carried out. */
export const opsOf = (plan: AnyPlan): ReshardPlan => (plan.format === "tensorferry.mesh-plan" ? meshOps(plan) : plan)

/** The operations that end in a destination tensor: all but contributions to reductions. */
export const arrivals = (plan: AnyPlan): ReadonlyArray<TransferOp> =>
  opsOf(plan).recvOps.filter(({ reduction }) => reduction === undefined)
