// SPDX-License-Identifier: Apache-2.0
/**
 * Where ranks are and how fast bytes get there: hosts, their ranks and their links to a network. Stated as data, by hand
 * or from measurements, and the same on every rank, since all plan from it.
 *
 * The network between hosts is taken as free of bottlenecks: only links limit it. Links are full duplex.
 */
import { Rank } from "@tensorferry/core/base/Ids"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type FleetError, fleetError } from "../FleetError.ts"

const Speed = Schema.Finite.check(Schema.isBetween({ minimum: 1, maximum: 1e18 }))
const Seconds = Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 3600 }))

/** A host's connection to the network. */
export const Link = Schema.Struct({
  /** As the operating system calls it, for people. */
  name: Schema.String,
  /** Of each direction; both at once do not slow each other. */
  bytesPerSecond: Speed,
  /** From a byte's departure to its arrival on another host. */
  latencySeconds: Seconds
})
export type Link = typeof Link.Type

/** A machine whose ranks reach each other's memory without the network. */
export const Host = Schema.Struct({
  /** Unique in the topology. */
  id: Schema.NonEmptyString,
  /** The ranks that run on it, each on one host only. */
  ranks: Schema.Array(Rank),
  /** At least one; all ranks of the host share them. */
  links: Schema.Array(Link),
  /** Bytes that copies between its ranks move in a second, all of them together. */
  localBytesPerSecond: Speed,
  /** Hosts of one zone are neighbours in chains, so that few copies cross from zone to zone. */
  zone: Schema.optionalKey(Schema.String)
})
export type Host = typeof Host.Type

/** All hosts of a fleet. Saved as JSON of this form. */
export const Topology = Schema.Struct({
  format: Schema.Literal("tensorferry.topology"),
  version: Schema.Literal(1),
  hosts: Schema.Array(Host)
})
export type Topology = typeof Topology.Type

/** A topology with what planning looks up. Hosts are numbered in the order in which the topology lists them. */
export interface TopologyIndex {
  /** What it was made from. */
  readonly topology: Topology
  /** Number of the host of a rank; undefined where no host has the rank. */
  readonly hostOf: (rank: Rank) => number | undefined
  /** By host, bytes per second of all its links together, in each direction. */
  readonly linkSpeed: ReadonlyArray<number>
  /** By host, the greatest latency of its links, in seconds. */
  readonly latency: ReadonlyArray<number>
}

const remedy = "Correct the topology; every rank must be given the same one."

/** Fails with InvalidTopology: a rank on two hosts, two hosts of one name, a host without a link. */
export const indexTopology = (topology: Topology): Result.Result<TopologyIndex, FleetError> => {
  const hosts = new Map<Rank, number>()
  const names = new Set<string>()
  const invalid = (detail: string, ranks: ReadonlyArray<Rank> = []) =>
    Result.fail(fleetError("InvalidTopology", ranks, { detail, remedy }))
  for (const [at, host] of topology.hosts.entries()) {
    if (names.has(host.id)) return invalid(`Two hosts are called ${host.id}.`)
    names.add(host.id)
    if (host.links.length === 0) return invalid(`Host ${host.id} has no link.`)
    for (const rank of host.ranks) {
      const other = hosts.get(rank)
      if (other !== undefined) {
        return invalid(`Rank ${rank} is on host ${topology.hosts[other]!.id} and on host ${host.id}.`, [rank])
      }
      hosts.set(rank, at)
    }
  }
  return Result.succeed({
    topology,
    hostOf: (rank) => hosts.get(rank),
    linkSpeed: topology.hosts.map(({ links }) => links.reduce((sum, { bytesPerSecond }) => sum + bytesPerSecond, 0)),
    latency: topology.hosts.map(({ links }) => links.reduce((most, link) => Math.max(most, link.latencySeconds), 0))
  })
}

/** What all hosts of a uniform topology have alike. */
export interface UniformHosts {
  readonly hosts: number
  readonly ranksPerHost: number
  /** Links of each host; 1 by default. */
  readonly links?: number
  /** Of each link, in each direction. */
  readonly bytesPerSecond: number
  /** 10 microseconds by default. */
  readonly latencySeconds?: number
  /** Copies within a host; 400e9 by default. */
  readonly localBytesPerSecond?: number
}

/** Hosts that are all alike, with ranks numbered host by host. */
export const uniformTopology = (alike: UniformHosts): Topology => ({
  format: "tensorferry.topology",
  version: 1,
  hosts: Array.from({ length: alike.hosts }, (_, host) => ({
    id: `host-${host}`,
    ranks: Array.from({ length: alike.ranksPerHost }, (_, at) => host * alike.ranksPerHost + at),
    links: Array.from({ length: alike.links ?? 1 }, (_, link) => ({
      name: `link-${link}`,
      bytesPerSecond: alike.bytesPerSecond,
      latencySeconds: alike.latencySeconds ?? 10e-6
    })),
    localBytesPerSecond: alike.localBytesPerSecond ?? 400e9
  }))
})
