// SPDX-License-Identifier: Apache-2.0
/**
 * Who holds and who wants what, as far as fan-out looks at it: regions that the same ranks hold and the same ranks want
 * are one bundle, whatever tensors they belong to.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Result from "effect/Result"
import { type FleetError, fleetError } from "../FleetError.ts"
import type { TopologyIndex } from "../topology/Topology.ts"

/** Regions that go the same way, one after the other in an order that all their ranks know. */
export interface Bundle {
  /** For people, and equal on all ranks. */
  readonly key: string
  readonly bytes: number
  /** Ranks that hold it before the update moves anything, ascending. */
  readonly holders: ReadonlyArray<Rank>
  /** Ranks that hold it afterwards, ascending; holders among them copy it within themselves. */
  readonly wanters: ReadonlyArray<Rank>
}

/** Everything that one update brings to everybody. */
export interface Demand {
  readonly bundles: ReadonlyArray<Bundle>
}

/** A bundle by hosts: where it is, and where it has to come over the network. */
export interface PlacedBundle extends Bundle {
  /** Its position in the demand. */
  readonly index: number
  /** By number of host, the holders there. */
  readonly holdersAt: ReadonlyMap<number, ReadonlyArray<Rank>>
  /** By number of host, the wanters there. */
  readonly wantersAt: ReadonlyMap<number, ReadonlyArray<Rank>>
  /** Hosts with wanters and no holder, zone by zone, those of holders first; ascending within a zone. */
  readonly remote: ReadonlyArray<number>
}

const inZones = (
  { topology: { hosts } }: TopologyIndex,
  holdersAt: ReadonlyMap<number, unknown>,
  remote: Array<number>
): ReadonlyArray<number> => {
  remote.sort((a, b) => a - b)
  const zoneOf = (host: number): string => hosts[host]!.zone ?? ""
  if (remote.every((host) => zoneOf(host) === zoneOf(remote[0]!))) return remote
  const near = new Set([...holdersAt.keys()].map(zoneOf))
  const keyOf = (host: number): string => `${near.has(zoneOf(host)) ? 0 : 1}${zoneOf(host)}`
  return remote.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : keyOf(a) > keyOf(b) ? 1 : a - b))
}

/** Sorts ranks by host. Fails with UnknownRank, or with NoSource where nobody holds what somebody wants. */
export const placeDemand = (
  demand: Demand,
  topology: TopologyIndex
): Result.Result<ReadonlyArray<PlacedBundle>, FleetError> => {
  const placed: Array<PlacedBundle> = []
  /** Equal lists of ranks give one map, by which planning recognises them. */
  const known = new Map<ReadonlyArray<Rank> | string, ReadonlyMap<number, ReadonlyArray<Rank>>>()
  let unknown: Rank | undefined
  const byHost = (ranks: ReadonlyArray<Rank>): ReadonlyMap<number, ReadonlyArray<Rank>> => {
    const same = known.get(ranks)
    if (same !== undefined) return same
    const text = ranks.join(",")
    const equal = known.get(text)
    if (equal !== undefined) {
      known.set(ranks, equal)
      return equal
    }
    const hosts = new Map<number, Array<Rank>>()
    for (const rank of ranks) {
      const host = topology.hostOf(rank)
      if (host === undefined) {
        unknown ??= rank
        continue
      }
      const there = hosts.get(host)
      if (there === undefined) hosts.set(host, [rank])
      else there.push(rank)
    }
    known.set(ranks, hosts).set(text, hosts)
    return hosts
  }
  for (const [index, bundle] of demand.bundles.entries()) {
    if (bundle.bytes === 0 || bundle.wanters.length === 0) continue
    if (bundle.holders.length === 0) {
      return Result.fail(
        fleetError("NoSource", bundle.wanters, {
          detail: `Nobody holds ${bundle.key}, which ${bundle.wanters.length} ranks want.`,
          remedy: "Start a rank that holds it, or load it from a checkpoint."
        })
      )
    }
    const [holdersAt, wantersAt] = [byHost(bundle.holders), byHost(bundle.wanters)]
    const remote = inZones(
      topology,
      holdersAt,
      [...wantersAt.keys()].filter((host) => !holdersAt.has(host))
    )
    placed.push({ ...bundle, index, holdersAt, wantersAt, remote })
  }
  if (unknown === undefined) return Result.succeed(placed)
  return Result.fail(
    fleetError("UnknownRank", [unknown], {
      rank: unknown,
      detail: `Rank ${unknown} takes part in the update, and no host of the topology has it.`,
      remedy: "Add it to the host on which it runs."
    })
  )
}
