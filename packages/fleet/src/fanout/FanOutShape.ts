// SPDX-License-Identifier: Apache-2.0
/**
 * The numbers that decide how trees look: stripes of each bundle, runs of hosts, children of a relay, bytes of a chunk.
 *
 * Stripes. Trees with several children need many, so that every host sends about as much as it gets. A chain does so with one,
 * which fills sooner than many that share each link, and needs the fewest edges.
 *
 * Prediction. A host's links share their speed among the trees that it is in, so one hop of a chunk takes
 * `trees * chunk / speed + latency`, and the last host has its first chunk after as many hops as the tree is deep. From
 * then on data comes as fast as the slowest condition of the bound allows, or as slowly as the busiest relay sends. Each
 * chunk costs a rank some time, so short chunks fill chains soon and cost more.
 */

import type { TopologyIndex } from "../topology/Topology.ts"
import type { PlacedBundle } from "./Demand.ts"
import type { LowerBound } from "./LowerBound.ts"

/** What callers may state instead of having it chosen. */
export interface FanOutOptions {
  /** Positive. By default it balances the time to fill a chain against the cost of each chunk. */
  readonly chunkBytes?: number
  /** Network edges that leave a relay; by default what the prediction favours. */
  readonly children?: number
  /** Time that each chunk costs a rank besides its bytes, in seconds; 20 microseconds by default. */
  readonly secondsPerChunk?: number
  /** Shorter stripes are not worth a tree of their own; 1 MiB by default. */
  readonly leastStripeBytes?: number
}

/** The chosen numbers. */
export interface FanOutShape {
  /** Of each chunk of a tree; the last may have fewer. */
  readonly chunkBytes: number
  /** Network edges that leave a relay, at most. */
  readonly children: number
  /** What the prediction says. */
  readonly predictedSeconds: number
  /** By placed bundle: stripes, each with a tree of its own. */
  readonly stripes: ReadonlyArray<number>
  /** By placed bundle: runs into which the hosts that want it are cut. */
  readonly runs: ReadonlyArray<number>
}

const mostStripes = 64
/** Stripes that the busiest host gets over each of its links, where bundles are long enough. */
const stripesPerLink = 8
const [leastChunk, largestChunk] = [2 ** 16, 2 ** 26]
const childrenToTry = [1, 2, 3, 4, 8, 16]

const clamp = (value: number, least: number, most: number): number => Math.min(Math.max(value, least), most)

const stripesOf = (
  bundles: ReadonlyArray<PlacedBundle>,
  topology: TopologyIndex,
  bound: LowerBound,
  { leastStripeBytes = 2 ** 20 }: FanOutOptions
) => {
  const links = topology.topology.hosts.reduce((most, host) => Math.max(most, host.links.length), 1)
  const target = Math.max(bound.largestIngressBytes / (stripesPerLink * links), 1)
  return bundles.map(({ bytes, remote }) =>
    remote.length === 0
      ? 1
      : clamp(Math.ceil(bytes / target), 1, Math.min(mostStripes, Math.ceil(bytes / leastStripeBytes)))
  )
}

/** How many copies of each bundle its holders can send in the time of the bound, besides what they pass on. */
const runsOf = (bundles: ReadonlyArray<PlacedBundle>, topology: TopologyIndex, bound: LowerBound) => {
  const { hosts } = topology.topology
  const held = new Float64Array(hosts.length)
  const ingress = new Float64Array(hosts.length)
  for (const { bytes, holdersAt, remote } of bundles) {
    for (const host of remote) ingress[host]! += bytes
    if (remote.length > 0) for (const host of holdersAt.keys()) held[host]! += bytes
  }
  /** Lists of holders are shared by many bundles. */
  const copies = new Map<unknown, number>()
  return bundles.map(({ holdersAt, remote }) => {
    if (remote.length === 0) return 1
    let possible = copies.get(holdersAt)
    if (possible === undefined) {
      possible = 0
      for (const host of holdersAt.keys()) {
        possible += Math.max(0, bound.seconds * topology.linkSpeed[host]! - ingress[host]!) / held[host]!
      }
      copies.set(holdersAt, possible)
    }
    // Two per cent more than fit are better than a run fewer.
    return clamp(Math.floor(possible + 0.02), 1, remote.length)
  })
}

/** Hosts between a source and the last host of a run, that one included. */
const depthOf = (hosts: number, children: number): number => {
  if (children === 1) return hosts
  let [depth, reached, level] = [0, 0, 1]
  while (reached < hosts) {
    reached += level
    level *= children
    depth += 1
  }
  return depth
}

/**
 * As few stripes as spread a bundle over the ranks of each host and over its holders. Links of one host share by stripes, so
 * hosts of several links need many.
 */
const fewOf = (bundles: ReadonlyArray<PlacedBundle>, topology: TopologyIndex, most: ReadonlyArray<number>) => {
  const { hosts } = topology.topology
  if (hosts.some(({ links }) => links.length > 1)) return most
  const ranks = hosts.reduce((largest, host) => Math.max(largest, host.ranks.length), 1)
  return bundles.map(({ holdersAt }, at) => Math.min(most[at]!, Math.max(ranks, holdersAt.size)))
}

/** Trees of the host that is in most of them. */
const treesTogether = (
  bundles: ReadonlyArray<PlacedBundle>,
  topology: TopologyIndex,
  stripes: ReadonlyArray<number>
): number => {
  const trees = new Float64Array(topology.topology.hosts.length)
  for (const [at, { remote }] of bundles.entries()) for (const host of remote) trees[host]! += stripes[at]!
  return trees.reduce((most, count) => Math.max(most, count), 1)
}

/** Chooses all numbers; what `options` states is taken as it is. */
export const fanOutShape = (
  bundles: ReadonlyArray<PlacedBundle>,
  topology: TopologyIndex,
  bound: LowerBound,
  options: FanOutOptions
): FanOutShape => {
  const most = stripesOf(bundles, topology, bound, options)
  const runs = runsOf(bundles, topology, bound)
  const { hosts } = topology.topology
  let longest = 0
  let [speed, latency, ranks] = [Number.POSITIVE_INFINITY, 0, Number.POSITIVE_INFINITY]
  for (const [at, { remote }] of bundles.entries()) {
    longest = Math.max(longest, Math.ceil(remote.length / runs[at]!))
    for (const host of remote) {
      speed = Math.min(speed, topology.linkSpeed[host]!)
      latency = Math.max(latency, topology.latency[host]!)
      ranks = Math.min(ranks, hosts[host]!.ranks.length)
    }
  }
  if (longest === 0) {
    const { chunkBytes = largestChunk, children = 1 } = options
    return { chunkBytes, children, predictedSeconds: bound.seconds, stripes: most, runs }
  }
  const perRank = bound.largestIngressBytes / Math.max(1, ranks)
  const { secondsPerChunk = 20e-6 } = options
  const few = fewOf(bundles, topology, most)
  let best: FanOutShape | undefined
  // Where both are as good, fewer stripes need fewer edges.
  for (const stripes of few.some((count, at) => count < most[at]!) ? [few, most] : [most]) {
    const together = treesTogether(bundles, topology, stripes)
    for (const children of options.children === undefined ? childrenToTry : [options.children]) {
      const depth = depthOf(longest, children)
      const ideal = Math.sqrt((perRank * secondsPerChunk * speed) / (depth * together))
      const chunkBytes = options.chunkBytes ?? 2 ** Math.round(Math.log2(clamp(ideal, leastChunk, largestChunk)))
      const relays = Math.ceil((longest - 1) / children) / longest
      const busiest = (children * Math.ceil(together * relays)) / together
      const stream = Math.max(bound.seconds, (bound.largestIngressBytes / speed) * busiest)
      const fill = depth * ((together * Math.min(chunkBytes, perRank)) / speed + latency)
      const predictedSeconds = stream + fill + (perRank / chunkBytes) * secondsPerChunk
      if (best === undefined || predictedSeconds < best.predictedSeconds)
        best = { chunkBytes, children, predictedSeconds, stripes, runs }
    }
  }
  return best!
}
