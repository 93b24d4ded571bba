// SPDX-License-Identifier: Apache-2.0
/**
 * Where the bytes of bundles lie on one rank. Pure. A bundle is its regions one after the other, each in every parameter that it
 * stands for; holders and wanters have each region somewhere in a tensor of their own.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import { formatRegion, type Region } from "@tensorferry/core/base/Region"
import { type PlanIndex, planRank } from "@tensorferry/core/planner/RosterPlanner"
import type { PlanDemand } from "../fanout/planDemand.ts"

/** A region of a bundle in a tensor of this rank. */
export interface PlacedRegion {
  /** First byte in the bundle. */
  readonly offset: number
  readonly bytes: number
  /** What this rank calls the tensor. */
  readonly name: string
  readonly region: Region
}

/** Regions of a bundle in the order of its bytes. */
export type RegionsOfBundle = ReadonlyArray<PlacedRegion>

/** By position of the bundle in the demand, the regions on a rank that holds or wants it. */
export const rankBundles = (
  index: PlanIndex,
  { bundles, bundleOf }: PlanDemand,
  rank: Rank
): ReadonlyMap<number, RegionsOfBundle> => {
  const plan = planRank(index, rank)
  const placed = new Map<number, RegionsOfBundle>()
  const localNames = new Map(plan.sourceTensors.map(({ name, resolvedName }) => [resolvedName, name]))
  const resolvedNames = new Map(plan.destinationTensors.map(({ name, resolvedName }) => [name, resolvedName]))
  /** By bundle, name and region of the source, where this rank receives it. */
  const received = new Map<number, Map<string, { readonly name: string; readonly region: Region }>>()
  const keyOf = (resolvedName: string, region: Region): string => `${resolvedName} ${formatRegion(region)}`
  for (const { paramName, peerRank, mySlice, peerSlice } of plan.recvOps) {
    const resolvedName = resolvedNames.get(paramName)
    const at = resolvedName === undefined ? undefined : bundleOf(resolvedName, peerRank, peerSlice)
    if (at === undefined) continue
    const ofBundle = received.get(at) ?? new Map<string, { readonly name: string; readonly region: Region }>()
    received.set(at, ofBundle)
    ofBundle.set(keyOf(resolvedName!, peerSlice), { name: paramName, region: mySlice })
  }
  for (const [at, { holders, wanters, regions }] of bundles.entries()) {
    const isHolder = holders.includes(rank)
    if (!isHolder && !wanters.includes(rank)) continue
    const list: Array<PlacedRegion> = []
    let offset = 0
    for (const { names, sourceRegion, bytes } of regions) {
      for (const resolvedName of names) {
        const here = isHolder
          ? { name: localNames.get(resolvedName)!, region: sourceRegion }
          : received.get(at)!.get(keyOf(resolvedName, sourceRegion))!
        list.push({ offset, bytes, ...here })
        offset += bytes
      }
    }
    placed.set(at, list)
  }
  return placed
}
