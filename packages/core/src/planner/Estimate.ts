// SPDX-License-Identifier: Apache-2.0
/**
 * What a set of plans costs before anything runs: bytes between ranks, memory per rank and a predicted time. Pure.
 */
import { byteLengthOf, wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, regionShape } from "../base/Region.ts"
import type { PlanTensor, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { opByteLength } from "./PlanCheck.ts"
import type { PlanIndex } from "./RosterPlanner.ts"

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
  readonly sentBytes: number
  readonly receivedBytes: number
  readonly localBytes: number
  /** Buffers for regions that travel in another type than a tensor of this rank has. */
  readonly castBytes: number
  /** What the transform of the update allocates, where it was named. */
  readonly transformBytes: number
  /**
   * Source, destination, cast and transform buffers together. Not counted, as plans do not show it: staging buffers of
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

/** All casts of a rank have their buffers at once: they are filled before, or emptied after, everything moves. */
const castBytesOf = (ops: ReadonlyArray<TransferOp>, tensors: ReadonlyArray<PlanTensor>): number => {
  const held = new Map(tensors.map((tensor) => [tensor.name, tensor.dtype]))
  return ops.reduce((sum, op) => (held.get(op.paramName) === op.wireDtype ? sum : sum + opByteLength(op)), 0)
}

const tensorBytesOf = (tensors: ReadonlyArray<PlanTensor>): number =>
  tensors.reduce((sum, tensor) => sum + byteLengthOf(tensor.dtype, elementCount(tensor.shape)), 0)

/** What plans alone do not show. */
export interface EstimateOptions {
  /** Bytes that a rank's transform allocates for its plan, such as `mxfp8BufferBytes` computes. */
  readonly transformBytes?: (plan: ReshardPlan) => number
}

/** Adds up the plans of all ranks. */
export const estimatePlans = (
  plans: ReadonlyArray<ReshardPlan>,
  speeds: LinkSpeeds = hostLinkSpeeds,
  options: EstimateOptions = {}
): PlanEstimate => {
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
    const destinationBytes = tensorBytesOf(plan.destinationTensors)
    const castBytes = castBytesOf(plan.sendOps, plan.sourceTensors) + castBytesOf(plan.recvOps, plan.destinationTensors)
    const transformBytes = options.transformBytes?.(plan) ?? 0
    return {
      rank: plan.rank,
      sourceBytes,
      destinationBytes,
      sentBytes: sent.get(plan.rank) ?? 0,
      receivedBytes: received.get(plan.rank) ?? 0,
      localBytes: local.get(plan.rank) ?? 0,
      castBytes,
      transformBytes,
      peakBytes: sourceBytes + destinationBytes + castBytes + transformBytes
    }
  })
  const seconds = Math.max(
    0,
    ...ranks.map(
      (rank) => Math.max(rank.sentBytes, rank.receivedBytes) / speeds.remote + rank.localBytes / speeds.local
    )
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
