// SPDX-License-Identifier: Apache-2.0
/**
 * From whom a replica gets the version that it needs. Pure: all members of an open update find the same trees from the
 * history alone, and a replica that joins takes everything from one member that has it.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Result from "effect/Result"
import { evenPart } from "../edges/EdgeMessages.ts"
import { wholeBundle } from "../edges/Pieces.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import type { Bundle } from "../fanout/Demand.ts"
import { type FanOutTree, planFanOut } from "../fanout/FanOut.ts"
import { repairTree } from "../fanout/repairTree.ts"
import type { ShardDemand, ShardLayout } from "../shards/ShardLayout.ts"
import { type Host, indexTopology, type Topology, type TopologyIndex } from "../topology/Topology.ts"
import type { FleetMember, FleetState } from "../version/FleetLog.ts"
import { isSameVersion, type Manifest } from "../version/Manifest.ts"

/** A run of bytes to take from one member, chunk by chunk. */
export interface StagePart {
  /** The bytes that it is a run of. */
  readonly bundle: string
  /** First byte in the bundle. */
  readonly offset: number
  readonly bytes: number
  /** Equal on all who take or give it. The last chunk has fewer bytes by less than there are chunks. */
  readonly chunkBytes: number
  /** The member that passes it on. */
  readonly parent: FleetMember
  /** It is taken to join, and not as a part of an update. */
  readonly isJoin: boolean
}

/**
 * An edge costs both ends memory and a connection. A chunk costs a relay some milliseconds of one processor: two known updates,
 * its proof and what is said about it, measured on a Xeon with two cores for nine processes.
 */
export const edgeCosts = { leastStripeBytes: 2 ** 26, secondsPerChunk: 3e-3 }

/** What ranks that the topology does not know are taken to be: each alone on a host of 10 Gbit/s. */
const aloneHost = (rank: number): Host => ({
  id: `rank ${rank}`,
  ranks: [rank],
  links: [{ name: "unknown", bytesPerSecond: 1.25e9, latencySeconds: 1e-4 }],
  localBytesPerSecond: 1e10
})

/** The topology with a host for each rank that it lacks. */
export const completeTopology = (
  topology: Topology | undefined,
  members: ReadonlyArray<FleetMember>
): Result.Result<TopologyIndex, FleetError> => {
  const hosts = topology?.hosts ?? []
  const known = new Set(hosts.flatMap(({ ranks }) => ranks))
  const ranks = members.map(({ rank }) => rank).filter((rank) => !known.has(rank))
  const others = [...ranks].sort((a, b) => a - b).map(aloneHost)
  return indexTopology({ format: "tensorferry.topology", version: 1, hosts: [...hosts, ...others] })
}

const noSource = (manifest: Manifest): FleetError =>
  fleetError("NoSource", [], {
    detail: `No member is left from whom version ${manifest.serial} can be taken.`,
    remedy: "Start a source or a replica that has it.",
    isRetryable: true
  })

/** What members want from each other. */
export interface StageDemand {
  /** What an update brings from ranks that have it to ranks that want it. */
  readonly update: (having: ReadonlySet<Rank>, wanting: ReadonlySet<Rank>) => ReadonlyArray<Bundle>
  /** What one rank takes to join, from replicas or from sources. */
  readonly join: (from: "replicas" | "sources", having: ReadonlySet<Rank>, rank: Rank) => ReadonlyArray<Bundle>
}

const ascending = (ranks: ReadonlySet<Rank>): ReadonlyArray<Rank> => [...ranks].sort((a, b) => a - b)

/** Of members that hold whole tensors, so many bytes of them. */
export const wholeDemand = (bytes: number): StageDemand => {
  const bundle = (having: ReadonlySet<Rank>, wanters: ReadonlyArray<Rank>): ReadonlyArray<Bundle> => [
    { key: wholeBundle, bytes, holders: ascending(having), wanters }
  ]
  return {
    update: (having, wanting) => bundle(having, ascending(wanting)),
    join: (_, having, rank) => bundle(having, [rank])
  }
}

/** Of members that hold shards. */
export const shardDemand = ({ fromSource, fromReplicas }: ShardLayout): StageDemand => {
  const of = (
    { demand, keyOf }: ShardDemand,
    having: ReadonlySet<Rank>,
    wanting: ReadonlySet<Rank>
  ): ReadonlyArray<Bundle> =>
    demand.bundles.flatMap(({ bytes, holders, wanters }, at) => {
      const left = wanters.filter((rank) => wanting.has(rank))
      if (bytes === 0 || left.length === 0) return []
      return [{ key: keyOf(at), bytes, holders: holders.filter((rank) => having.has(rank)), wanters: left }]
    })
  return {
    update: (having, wanting) => of(fromSource, having, wanting),
    join: (from, having, rank) => of(from === "sources" ? fromSource : fromReplicas, having, new Set([rank]))
  }
}

/** The trees of an open update, without members that are gone. Equal on all members. */
const treesOf = (
  { members, open, current }: FleetState & { readonly open: NonNullable<FleetState["open"]> },
  demand: StageDemand,
  stated: Topology | undefined,
  avoided: ReadonlySet<string>
) =>
  Result.gen(function* () {
    const topology = yield* completeTopology(stated, open.members)
    const has = ({ role }: FleetMember): boolean => role === "source" || current?.content === open.manifest.content
    const ranksOf = (some: ReadonlyArray<FleetMember>) => new Set(some.map(({ rank }) => rank))
    const bundles = demand.update(
      ranksOf(open.members.filter(has)),
      ranksOf(open.members.filter(({ role }) => role === "replica"))
    )
    const fanOut = yield* planFanOut({ bundles }, topology, edgeCosts)
    const here = new Set(members.map(({ id }) => id))
    const dead = new Set(open.members.filter(({ id }) => !here.has(id) || avoided.has(id)).map(({ rank }) => rank))
    const trees: ReadonlyArray<FanOutTree> = fanOut.trees.map(
      (tree) => repairTree(tree, bundles[tree.bundle]!, topology, dead).tree
    )
    return { bundles, trees, chunkBytes: fanOut.chunkBytes }
  })

const bytesFor = (rank: Rank, bundles: ReadonlyArray<Bundle>): number =>
  bundles.reduce((sum, { bytes, wanters }) => (wanters.includes(rank) ? sum + bytes : sum), 0)

/**
 * What `self` takes of a version. `avoided` are members that it could not take from lately.
 */
export const stagePlan = (
  fleet: FleetState,
  self: FleetMember,
  manifest: Manifest,
  demand: StageDemand,
  topology: Topology | undefined,
  avoided: ReadonlySet<string>
): Result.Result<ReadonlyArray<StagePart>, FleetError> => {
  const { open, members } = fleet
  if (open !== null && isSameVersion(open.manifest, manifest) && open.members.some(({ id }) => id === self.id)) {
    const found = treesOf({ ...fleet, open }, demand, topology, avoided)
    if (Result.isFailure(found)) return Result.fail(found.failure)
    const { bundles, trees, chunkBytes: most } = found.success
    const byRank = new Map(open.members.map((member) => [member.rank, member]))
    const parts = trees.flatMap(({ bundle: at, offset, bytes, edges }) => {
      const edge = edges.find(({ to }) => to === self.rank)
      const parent = byRank.get(edge?.from ?? -1)
      const bundle = bundles[at]!.key
      return parent === undefined
        ? []
        : [{ bundle, offset, bytes, chunkBytes: evenPart(bytes, most), parent, isJoin: false }]
    })
    const taken = parts.reduce((sum, part) => sum + part.bytes, 0)
    return taken === bytesFor(self.rank, bundles) ? Result.succeed(parts) : Result.fail(noSource(manifest))
  }
  return joinPlan(members, self, manifest, demand, avoided)
}

/** Replicas serve the version in use; a source may have gone on to the next. */
const joinPlan = (
  members: ReadonlyArray<FleetMember>,
  self: FleetMember,
  manifest: Manifest,
  demand: StageDemand,
  avoided: ReadonlySet<string>
): Result.Result<ReadonlyArray<StagePart>, FleetError> => {
  const others = members.filter(({ id, rank }) => id !== self.id && rank !== self.rank && !avoided.has(id))
  const byRank = new Map(others.map((member) => [member.rank, member]))
  for (const from of ["replicas", "sources"] as const) {
    const able = others.filter(({ role }) => (role === "replica") === (from === "replicas"))
    const bundles = demand.join(from, new Set(able.map(({ rank }) => rank)), self.rank)
    if (bundles.some(({ holders }) => holders.length === 0)) continue
    return Result.succeed(
      bundles.map(({ key, bytes, holders }, at) => ({
        bundle: key,
        offset: 0,
        bytes,
        chunkBytes: evenPart(bytes, 2 ** 23),
        isJoin: true,
        // Who joins at the same time, and what one takes, is spread over those who have it.
        parent: byRank.get(holders[(self.rank + at) % holders.length]!)!
      }))
    )
  }
  return Result.fail(noSource(manifest))
}
