// SPDX-License-Identifier: Apache-2.0
/**
 * Proves that a fan-out is one, whoever made it: each bundle reaches each wanter once and enters each host at most once,
 * and nobody passes on what they do not have. Collects all faults, in words.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { TopologyIndex } from "../topology/Topology.ts"
import type { Demand } from "./Demand.ts"
import type { FanOut, FanOutTree } from "./FanOut.ts"

const checkTree = (tree: FanOutTree, demand: Demand, topology: TopologyIndex, wrong: (text: string) => void): void => {
  const bundle = demand.bundles[tree.bundle]
  if (bundle === undefined) return void wrong(`A tree is about bundle ${tree.bundle}, which the demand does not have.`)
  const name = `${bundle.key} from byte ${tree.offset}`
  const holders = new Set(bundle.holders)
  const has = new Set<Rank>(bundle.holders)
  const got = new Set<Rank>()
  const entered = new Set<number>()
  const wanters = new Set(bundle.wanters)
  for (const host of bundle.holders) entered.add(topology.hostOf(host) ?? -1)
  for (const { from, to, via, fromLink, toLink } of tree.edges) {
    const [there, here] = [topology.hostOf(from), topology.hostOf(to)]
    if (there === undefined || here === undefined) {
      wrong(`${name}: rank ${there === undefined ? from : to} is on no host.`)
      continue
    }
    if (!has.has(from)) wrong(`${name}: rank ${from} passes it to rank ${to} before it has it.`)
    if (!wanters.has(to)) wrong(`${name}: rank ${to} gets it and does not want it.`)
    if (got.has(to)) wrong(`${name}: rank ${to} gets it twice.`)
    if (via === "own" && (from !== to || !holders.has(from)))
      wrong(`${name}: rank ${to} is to copy within itself from rank ${from}.`)
    if (via !== "own" && from === to) wrong(`${name}: rank ${to} is its own sender.`)
    if (via !== "network" && there !== here) wrong(`${name}: ranks ${from} and ${to} are on different hosts.`)
    if (via === "network") {
      if (entered.has(here)) wrong(`${name}: it enters host ${here} again, for rank ${to}.`)
      entered.add(here)
      const [outs, ins] = [there, here].map((host) => topology.topology.hosts[host]!.links.length)
      if (!(fromLink >= 0 && fromLink < outs! && toLink >= 0 && toLink < ins!))
        wrong(`${name}: links ${fromLink} and ${toLink} of ranks ${from} and ${to} do not exist.`)
    }
    has.add(to)
    got.add(to)
  }
  for (const rank of bundle.wanters) if (!got.has(rank)) wrong(`${name}: rank ${rank} never gets it.`)
}

/** The faults of a fan-out for this demand; empty where it is right. */
export const checkFanOut = (fanOut: FanOut, demand: Demand, topology: TopologyIndex): ReadonlyArray<string> => {
  const faults: Array<string> = []
  const wrong = (text: string): void => void faults.push(text)
  const stripes = demand.bundles.map(() => [] as Array<FanOutTree>)
  for (const tree of fanOut.trees) {
    checkTree(tree, demand, topology, wrong)
    stripes[tree.bundle]?.push(tree)
  }
  for (const [at, { key, bytes, wanters }] of demand.bundles.entries()) {
    let end = 0
    for (const stripe of stripes[at]!.toSorted((a, b) => a.offset - b.offset)) {
      if (stripe.offset !== end) wrong(`${key}: a stripe begins at byte ${stripe.offset}, not at ${end}.`)
      end = stripe.offset + stripe.bytes
    }
    if (end !== (wanters.length === 0 ? 0 : bytes)) wrong(`${key}: its stripes end at byte ${end} of ${bytes}.`)
  }
  return faults
}
