// SPDX-License-Identifier: Apache-2.0
/**
 * How identical regions reach all who want them: trees over hosts. Pure; every rank computes the same trees from the same
 * demand and topology.
 *
 * Invariants, which `checkFanOut` proves for any fan-out:
 * - a bundle reaches each wanter once, and enters each host at most once over the network;
 * - a rank passes on only what it holds or has received;
 * - what a tree carries is cut into chunks at the same places on all its edges, so that a relay passes on each chunk as
 *   soon as it has proven it.
 *
 * A bundle is cut into stripes, so that links and replicas share the load even where there are few bundles. Each stripe
 * starts at as many holders as can serve within the time that no plan can beat, which cuts the hosts that want it into
 * equally long runs. A run is a chain where the data is long, and a tree of more children where latency counts.
 * In each tree those hosts pass on most that have least to pass on in the trees before, so that each host sends about as much
 * as it gets, and slow ones less.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Result from "effect/Result"
import type { FleetError } from "../FleetError.ts"
import type { TopologyIndex } from "../topology/Topology.ts"
import { type Demand, type PlacedBundle, placeDemand } from "./Demand.ts"
import { type FanOutOptions, fanOutShape } from "./FanOutShape.ts"
import { type LowerBound, lowerBound } from "./LowerBound.ts"

/** What one rank passes to another, chunk by chunk. */
export interface FanOutEdge {
  readonly from: Rank
  /** Equal to `from` where a holder copies within itself. */
  readonly to: Rank
  /** `host`: both ranks share a machine, and one maps the other's memory. */
  readonly via: "network" | "host" | "own"
  /** Position among the links of the sender's host; -1 where no link is used. */
  readonly fromLink: number
  /** Position among the links of the receiver's host; -1 where no link is used. */
  readonly toLink: number
}

/** One stripe of a bundle, and how it spreads. */
export interface FanOutTree {
  /** Position of the bundle in the demand. */
  readonly bundle: number
  /** First byte of the stripe in its bundle. */
  readonly offset: number
  readonly bytes: number
  /** Parents stand before their children. */
  readonly edges: ReadonlyArray<FanOutEdge>
}

/** How one update reaches everybody. */
export interface FanOut {
  readonly trees: ReadonlyArray<FanOutTree>
  /** Bytes of each chunk of a tree; the last chunk may have fewer. */
  readonly chunkBytes: number
  /** Network edges that leave a relay of one tree, at most. */
  readonly children: number
  /** What no plan can beat. */
  readonly bound: LowerBound
  /** What the planner expects, in seconds. */
  readonly predictedSeconds: number
}

/** Positions of the least loaded among candidates; ties go to the first from `start` on. */
const leastOf = <A>(candidates: ReadonlyArray<A>, start: number, loadOf: (candidate: A) => number): A => {
  if (candidates.length === 1) return candidates[0]!
  let best = candidates[start % candidates.length]!
  let least = loadOf(best)
  for (let step = 1, at = start % candidates.length; step < candidates.length; step++) {
    at = at + 1 === candidates.length ? 0 : at + 1
    const candidate = candidates[at]!
    const load = loadOf(candidate)
    if (load < least) [best, least] = [candidate, load]
  }
  return best
}

/** Counts bytes by thing. */
class Loads<A> {
  readonly #bytes = new Map<A, number>()
  of = (thing: A): number => this.#bytes.get(thing) ?? 0
  add(thing: A, bytes: number): void {
    this.#bytes.set(thing, this.of(thing) + bytes)
  }
}

/** The loads that choices balance, over all trees made so far. */
class Balance {
  readonly topology: TopologyIndex
  /** By host, how long its links are busy sending. */
  readonly #seconds: Float64Array
  readonly sent = new Loads<Rank>()
  readonly received = new Loads<Rank>()
  readonly #links = { out: new Map<number, Array<number>>(), in: new Map<number, Array<number>>() }

  constructor(topology: TopologyIndex) {
    this.topology = topology
    this.#seconds = new Float64Array(topology.topology.hosts.length)
  }

  /** The host that is done sending first; ties go to the first from `start` on. */
  idlest(hosts: Int32Array, start: number): number {
    const seconds = this.#seconds
    let best = hosts[start % hosts.length]!
    let least = seconds[best]!
    for (let step = 1, at = start % hosts.length; step < hosts.length; step++) {
      at = at + 1 === hosts.length ? 0 : at + 1
      const busy = seconds[hosts[at]!]!
      if (busy < least) [best, least] = [hosts[at]!, busy]
    }
    return best
  }

  /** In the order in which they would be done with these bytes more; equal ones stay in the order given. */
  byBusyness(hosts: ReadonlyArray<number>, bytes: number): ReadonlyArray<number> {
    const done = (host: number): number => this.#seconds[host]! + bytes / this.topology.linkSpeed[host]!
    return hosts.toSorted((a, b) => done(a) - done(b))
  }

  /** The link of a host that is busy for the least time with these bytes more, counted from now on. */
  link(host: number, direction: "out" | "in", bytes: number): number {
    const { links } = this.topology.topology.hosts[host]!
    if (direction === "out") this.#seconds[host]! += bytes / this.topology.linkSpeed[host]!
    if (links.length === 1) return 0
    const loads = this.#links[direction].get(host) ?? links.map(() => 0)
    this.#links[direction].set(host, loads)
    let [best, least] = [0, Number.POSITIVE_INFINITY]
    for (const [at, { bytesPerSecond }] of links.entries()) {
      const seconds = (loads[at]! + bytes) / bytesPerSecond
      if (seconds < least) [best, least] = [at, seconds]
    }
    loads[best]! += bytes
    return best
  }
}

/** Cuts a length into parts that differ by at most one. */
const partStart = (length: number, parts: number, part: number): number => Math.floor((length * part) / parts)

interface TreeInput {
  readonly bundle: PlacedBundle
  readonly offset: number
  readonly bytes: number
  readonly runs: number
  readonly children: number
  /** Number of the tree. */
  readonly number: number
}

/** Hosts of a run by zone, each list in the order of its places in the tree: who has least to send passes most on. */
const inOrder = (
  hosts: ReadonlyArray<number>,
  bytes: number,
  balance: Balance
): ReadonlyArray<ReadonlyArray<number>> => {
  const zones = new Map<string | undefined, Array<number>>()
  for (const host of hosts) {
    const { zone } = balance.topology.topology.hosts[host]!
    const there = zones.get(zone)
    if (there === undefined) zones.set(zone, [host])
    else there.push(host)
  }
  return [...zones.values()].map((there) => (there.length === 1 ? there : balance.byBusyness(there, bytes)))
}

const makeTree = (input: TreeInput, balance: Balance): FanOutTree => {
  const { bundle, offset, bytes, runs, children, number: start } = input
  const edges: Array<FanOutEdge> = []
  const spread = (host: number, head: Rank): void => {
    for (const to of bundle.wantersAt.get(host)!) {
      if (to === head) continue
      balance.received.add(to, bytes)
      edges.push({ from: head, to, via: "host", fromLink: -1, toLink: -1 })
    }
  }
  for (const [host, holders] of bundle.holdersAt) {
    for (const to of bundle.wantersAt.get(host) ?? []) {
      if (holders.includes(to)) {
        edges.push({ from: to, to, via: "own", fromLink: -1, toLink: -1 })
        continue
      }
      const from = leastOf(holders, start, balance.sent.of)
      balance.sent.add(from, bytes)
      edges.push({ from, to, via: "host", fromLink: -1, toLink: -1 })
    }
  }
  const sources = Int32Array.from(bundle.holdersAt.keys())
  for (let run = 0; run < runs; run++) {
    const [first, end] = [run, run + 1].map((part) => partStart(bundle.remote.length, runs, part))
    const source = balance.idlest(sources, start + run)
    let above: readonly [host: number, rank: Rank] = [
      source,
      leastOf(bundle.holdersAt.get(source)!, start, balance.sent.of)
    ]
    for (const hosts of inOrder(bundle.remote.slice(first, end), bytes, balance)) {
      const heads: Array<Rank> = []
      for (const [place, host] of hosts.entries()) {
        const parent = Math.floor((place - 1) / children)
        const [there, from] = place === 0 ? above : ([hosts[parent]!, heads[parent]!] as const)
        const to = leastOf(bundle.wantersAt.get(host)!, start, balance.received.of)
        heads.push(to)
        balance.sent.add(from, bytes)
        balance.received.add(to, bytes)
        const fromLink = balance.link(there, "out", bytes)
        edges.push({ from, to, via: "network", fromLink, toLink: balance.link(host, "in", bytes) })
        spread(host, to)
      }
      above = [hosts[0]!, heads[0]!]
    }
  }
  return { bundle: bundle.index, offset, bytes, edges }
}

/** Fails with UnknownRank or NoSource, equally on every rank. */
export const planFanOut = (
  demand: Demand,
  topology: TopologyIndex,
  options: FanOutOptions = {}
): Result.Result<FanOut, FleetError> =>
  Result.map(placeDemand(demand, topology), (bundles) => {
    const bound = lowerBound(bundles, topology)
    const shape = fanOutShape(bundles, topology, bound, options)
    const { chunkBytes, children, predictedSeconds } = shape
    const balance = new Balance(topology)
    const trees: Array<FanOutTree> = []
    for (const [at, bundle] of bundles.entries()) {
      const [stripes, runs] = [shape.stripes[at]!, shape.runs[at]!]
      for (let stripe = 0; stripe < stripes; stripe++) {
        const offset = partStart(bundle.bytes, stripes, stripe)
        const bytes = partStart(bundle.bytes, stripes, stripe + 1) - offset
        trees.push(makeTree({ bundle, offset, bytes, runs, children, number: trees.length }, balance))
      }
    }
    return { trees, chunkBytes, children, bound, predictedSeconds }
  })

/** One rank's part of a tree. */
export interface RankTree {
  /** Position of the tree in the fan-out. */
  readonly tree: number
  /** Where this rank gets it from; undefined for a rank that held it before. */
  readonly parent: FanOutEdge | undefined
  /** To whom it passes each chunk, once it has proven it. */
  readonly children: ReadonlyArray<FanOutEdge>
}

/** What one rank receives and passes on, tree by tree; trees without it are left out. */
export const fanOutOf = (fanOut: FanOut, rank: Rank): ReadonlyArray<RankTree> =>
  fanOut.trees.flatMap(({ edges }, tree) => {
    let parent: FanOutEdge | undefined
    const children: Array<FanOutEdge> = []
    for (const edge of edges) {
      if (edge.to === rank) parent = edge
      else if (edge.from === rank) children.push(edge)
    }
    return parent === undefined && children.length === 0 ? [] : [{ tree, parent, children }]
  })

/** How many chunks a tree carries. */
export const chunksOf = (fanOut: FanOut, tree: FanOutTree): number => Math.ceil(tree.bytes / fanOut.chunkBytes)

/** Bytes that one link carries in each direction. */
export interface LinkBytes {
  /** Number of the host in the topology. */
  readonly host: number
  /** Position among the host's links. */
  readonly link: number
  readonly sent: number
  readonly received: number
}

/** What all links carry, by host and link; links without traffic are listed too. */
export const linkBytes = (fanOut: FanOut, topology: TopologyIndex): ReadonlyArray<LinkBytes> => {
  const rows = topology.topology.hosts.map(({ links }) => links.map(() => ({ sent: 0, received: 0 })))
  for (const { bytes, edges } of fanOut.trees) {
    for (const { from, to, via, fromLink, toLink } of edges) {
      if (via !== "network") continue
      rows[topology.hostOf(from)!]![fromLink]!.sent += bytes
      rows[topology.hostOf(to)!]![toLink]!.received += bytes
    }
  }
  return rows.flatMap((links, host) => links.map((counted, link) => ({ host, link, ...counted })))
}
