// SPDX-License-Identifier: Apache-2.0
/**
 * From whom a replica gets the version that it needs. Pure: all members of an open update find the same trees from the
 * history alone, and a replica that joins takes everything from one member that has it.
 */
import * as Result from "effect/Result"
import { evenPart } from "../edges/EdgeMessages.ts"
import { wholeBundle } from "../edges/Pieces.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import { type FanOutTree, planFanOut } from "../fanout/FanOut.ts"
import { repairTree } from "../fanout/repairTree.ts"
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
}

/** An edge costs both ends memory and a connection, and a chunk a known update and what goes with it. */
export const edgeCosts = { leastStripeBytes: 2 ** 26, secondsPerChunk: 5e-4 }

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

/** The trees of an open update, without members that are gone. Equal on all members. */
const treesOf = (
  { members, open, current }: FleetState & { readonly open: NonNullable<FleetState["open"]> },
  bytes: number,
  stated: Topology | undefined,
  avoided: ReadonlySet<string>
) =>
  Result.gen(function* () {
    const topology = yield* completeTopology(stated, open.members)
    const has = ({ role }: FleetMember): boolean => role === "source" || current?.content === open.manifest.content
    const ranksOf = (some: ReadonlyArray<FleetMember>) => some.map(({ rank }) => rank).sort((a, b) => a - b)
    const bundle = {
      key: `version ${open.manifest.serial}`,
      bytes,
      holders: ranksOf(open.members.filter(has)),
      wanters: ranksOf(open.members.filter(({ role }) => role === "replica"))
    }
    const fanOut = yield* planFanOut({ bundles: [bundle] }, topology, edgeCosts)
    const here = new Set(members.map(({ id }) => id))
    const dead = new Set(open.members.filter(({ id }) => !here.has(id) || avoided.has(id)).map(({ rank }) => rank))
    const trees: ReadonlyArray<FanOutTree> = fanOut.trees.map((tree) => repairTree(tree, bundle, topology, dead).tree)
    return { trees, chunkBytes: fanOut.chunkBytes }
  })

/**
 * What `self` takes of a version. `avoided` are members that it could not take from lately.
 */
export const stagePlan = (
  fleet: FleetState,
  self: FleetMember,
  manifest: Manifest,
  bytes: number,
  topology: Topology | undefined,
  avoided: ReadonlySet<string>
): Result.Result<ReadonlyArray<StagePart>, FleetError> => {
  const { open, members } = fleet
  if (open !== null && isSameVersion(open.manifest, manifest) && open.members.some(({ id }) => id === self.id)) {
    const found = treesOf({ ...fleet, open }, bytes, topology, avoided)
    if (Result.isFailure(found)) return Result.fail(found.failure)
    const byRank = new Map(open.members.map((member) => [member.rank, member]))
    const parts = found.success.trees.flatMap(({ offset, bytes: stripe, edges }) => {
      const edge = edges.find(({ to }) => to === self.rank)
      const chunkBytes = evenPart(stripe, found.success.chunkBytes)
      const parent = byRank.get(edge?.from ?? -1)
      return parent === undefined ? [] : [{ bundle: wholeBundle, offset, bytes: stripe, chunkBytes, parent }]
    })
    const taken = parts.reduce((sum, part) => sum + part.bytes, 0)
    return taken === bytes ? Result.succeed(parts) : Result.fail(noSource(manifest))
  }
  // Replicas serve the version in use; a source may have gone on to the next.
  const others = members.filter(({ id }) => id !== self.id && !avoided.has(id))
  const replicas = others.filter(({ role }) => role === "replica")
  const able = replicas.length > 0 ? replicas : others
  const parent = able[self.rank % Math.max(1, able.length)]
  if (parent === undefined) return Result.fail(noSource(manifest))
  return Result.succeed([{ bundle: wholeBundle, offset: 0, bytes, chunkBytes: evenPart(bytes, 2 ** 23), parent }])
}
