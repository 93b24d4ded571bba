// SPDX-License-Identifier: Apache-2.0
/**
 * What a set of plans costs before anything runs: bytes between ranks, memory per rank and a predicted time. Pure.
 */
import { byteLengthOf, wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, regionShape } from "../base/Region.ts"
import type { PlanTensor, ReshardPlan } from "../ir/ReshardPlan.ts"
import { type AnyPlan, opsOf } from "./MeshOps.ts"
import { opByteLength } from "./PlanCheck.ts"
import type { PlanIndex } from "./RosterPlanner.ts"
import { bufferBytesOf, defaultWaveBytes, wavesOf } from "./Waves.ts"

/** Speeds in bytes per second. */
export interface LinkSpeeds {
  /** Copies within a rank. */
  readonly local: number
  /** One direction of one rank's link to others. */
  readonly remote: number
}

/** What a host of one or two memory channels does; measured values should be passed instead. */
export const hostLinkSpeeds: LinkSpeeds = { local: 8e9, remote: 4e9 }

/** What one rank moves and needs, in bytes. */
export interface RankEstimate {
  readonly rank: Rank
  readonly sourceBytes: number
  readonly destinationBytes: number
  /** Contributions to reductions among them. */
  readonly sentBytes: number
  readonly receivedBytes: number
  readonly localBytes: number
  /** Parts that the rank reduces, its own among them, in the source's element type. */
  readonly reducedBytes: number
  /** Results of reductions, and most bytes at once of what is cast or contributed on its way. */
  readonly bufferBytes: number
  /** What the transform of the update allocates, where it was named. */
  readonly transformBytes: number
  /**
   * Source, destination and all buffers together. Not counted, as plans do not show it: staging buffers of
   * a driver without `gather`, and buffers for sends that an update in place would overwrite.
   */
  readonly peakBytes: number
}

/** Bytes and operations that go from one rank to another. */
export interface Traffic {
  readonly from: Rank
  readonly to: Rank
  readonly bytes: number
  readonly ops: number
}

/** What all ranks of an update move and need, in bytes, and the predicted time in seconds. */
export interface PlanEstimate {
  readonly ranks: ReadonlyArray<RankEstimate>
  /** Pairs that exchange something, local copies included, in order of rank. */
  readonly traffic: ReadonlyArray<Traffic>
  readonly totalBytes: number
  readonly remoteBytes: number
  readonly ops: number
  readonly seconds: number
}

/** Bytes of the boxes that a rank reduces, and of the parts that go into them. */
const reductionsOf = ({ rank, reductions = [], sourceTensors }: ReshardPlan) => {
  if (reductions.length === 0) return { results: 0, parts: 0 }
  const dtypes = new Map(sourceTensors.map(({ name, dtype }) => [name, dtype]))
  let [results, parts] = [0, 0]
  for (const { paramName, region, ranks, root } of reductions) {
    if (root !== rank) continue
    const bytes = byteLengthOf(dtypes.get(paramName) ?? "uint8", elementCount(regionShape(region)))
    results += bytes
    parts += bytes * ranks.length
  }
  return { results, parts }
}

const tensorBytesOf = (tensors: ReadonlyArray<PlanTensor>): number =>
  tensors.reduce((sum, tensor) => sum + byteLengthOf(tensor.dtype, elementCount(tensor.shape)), 0)

/** What plans alone do not show. */
export interface EstimateOptions {
  /** Bytes that a rank's transform allocates for its plan, such as `quantizeBufferBytes` of `@tensorferry/model` computes. */
  readonly transformBytes?: (plan: ReshardPlan) => number
  /** Bytes of a rank's destinations, where a transform stores them in another form than the plan's. */
  readonly destinationBytes?: (plan: ReshardPlan) => number
}

/** Adds up the plans of all ranks, of either planner. */
export const estimatePlans = (
  given: ReadonlyArray<AnyPlan>,
  speeds: LinkSpeeds = hostLinkSpeeds,
  options: EstimateOptions = {}
): PlanEstimate => {
  const plans = given.map(opsOf)
  const traffic: Array<Traffic> = []
  const sent = new Map<Rank, number>()
  const received = new Map<Rank, number>()
  const local = new Map<Rank, number>()
  const add = (map: Map<Rank, number>, rank: Rank, bytes: number): void => {
    map.set(rank, (map.get(rank) ?? 0) + bytes)
  }
  for (const plan of plans) {
    const byPeer = new Map<Rank, { bytes: number; ops: number }>()
    for (const op of plan.recvOps) {
      const entry = byPeer.get(op.peerRank) ?? { bytes: 0, ops: 0 }
      entry.bytes += opByteLength(op)
      entry.ops += 1
      byPeer.set(op.peerRank, entry)
    }
    for (const [from, { bytes, ops }] of [...byPeer].sort(([a], [b]) => a - b)) {
      traffic.push({ from, to: plan.rank, bytes, ops })
      if (from === plan.rank) add(local, plan.rank, bytes)
      else {
        add(sent, from, bytes)
        add(received, plan.rank, bytes)
      }
    }
  }
  traffic.sort((a, b) => a.from - b.from || a.to - b.to)
  const ranks = plans.map((plan): RankEstimate => {
    const sourceBytes = tensorBytesOf(plan.sourceTensors)
    const destinationBytes = options.destinationBytes?.(plan) ?? tensorBytesOf(plan.destinationTensors)
    const { results, parts } = reductionsOf(plan)
    const bufferBytes = results + bufferBytesOf(plan, wavesOf(plan, plan.waveBytes ?? defaultWaveBytes))
    const transformBytes = options.transformBytes?.(plan) ?? 0
    return {
      rank: plan.rank,
      sourceBytes,
      destinationBytes,
      sentBytes: sent.get(plan.rank) ?? 0,
      receivedBytes: received.get(plan.rank) ?? 0,
      localBytes: local.get(plan.rank) ?? 0,
      reducedBytes: parts,
      bufferBytes,
      transformBytes,
      peakBytes: sourceBytes + destinationBytes + bufferBytes + transformBytes
    }
  })
  const seconds = ranks.reduce(
    (most, rank) =>
      Math.max(
        most,
        Math.max(rank.sentBytes, rank.receivedBytes) / speeds.remote +
          (rank.localBytes + rank.reducedBytes) / speeds.local
      ),
    0
  )
  const totalBytes = traffic.reduce((sum, entry) => sum + entry.bytes, 0)
  const remoteBytes = traffic.reduce((sum, entry) => sum + (entry.from === entry.to ? 0 : entry.bytes), 0)
  return { ranks, traffic, totalBytes, remoteBytes, ops: traffic.reduce((sum, entry) => sum + entry.ops, 0), seconds }
}

/**
 * Bytes and operations between all pairs of ranks, straight from the index: no rank's plan is made, so it also serves
 * clusters of many thousand ranks.
 */
export const clusterTraffic = (index: PlanIndex): ReadonlyArray<Traffic> => {
  const { destination } = index
  const traffic: Array<Traffic> = []
  for (const member of destination.roster.members) {
    const bySender = new Map<Rank, { bytes: number; ops: number }>()
    for (const { kind, positions } of index.kinds[member.layoutClass]!) {
      const { tiles, senders } = index.assign(member, kind)
      const { structure } = kind.destinations.get(member.layoutClass)!
      const wire = wireDType(kind.sourceDtype, destination.roster.structures[structure]!.dtype)
      for (const [at, tile] of tiles.entries()) {
        const sender = senders[at]!
        const entry = bySender.get(sender) ?? { bytes: 0, ops: 0 }
        entry.bytes += byteLengthOf(wire, elementCount(regionShape(tile.destinationRegion))) * positions.length
        entry.ops += positions.length
        bySender.set(sender, entry)
      }
    }
    for (const [from, { bytes, ops }] of bySender) traffic.push({ from, to: member.rank, bytes, ops })
  }
  return traffic.sort((a, b) => a.from - b.from || a.to - b.to)
}
