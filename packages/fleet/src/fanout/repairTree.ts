// SPDX-License-Identifier: Apache-2.0
/**
 * A tree without ranks that are gone. Pure, so that all who know of the same deaths get the same tree.
 *
 * Who loses its parent gets, in this order: a rank of the parent's host that got the same from it, the nearest ancestor
 * that lives, another holder. Nobody else's edges change, so everything that is under way elsewhere goes on.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { TopologyIndex } from "../topology/Topology.ts"
import type { Bundle } from "./Demand.ts"
import type { FanOutEdge, FanOutTree } from "./FanOut.ts"

/** What is left of a tree. */
export interface RepairedTree {
  readonly tree: FanOutTree
  /** Ranks that live and get nothing more, because no holder lives. */
  readonly lost: ReadonlyArray<Rank>
}

/**
 * Leaves `dead` out. `proven` are ranks that have received and proven the whole stripe, which serve as holders do.
 */
export const repairTree = (
  tree: FanOutTree,
  bundle: Bundle,
  topology: TopologyIndex,
  dead: ReadonlySet<Rank>,
  proven: ReadonlyArray<Rank> = []
): RepairedTree => {
  const holders = [...bundle.holders, ...proven].filter((rank) => !dead.has(rank))
  const given = new Map(tree.edges.filter(({ via }) => via !== "own").map((edge) => [edge.to, edge]))
  const lost = new Set<Rank>()
  const has = new Set(holders)
  /** By host of a dead head, who took its place there. */
  const heirs = new Map<number, Rank>()
  const edges: Array<FanOutEdge> = []
  let chosen = 0

  /** A holder that lives, on this host where there is one; they take turns. */
  const otherHolder = (host: number): Rank | undefined =>
    holders.find((rank) => topology.hostOf(rank) === host) ?? holders[(tree.bundle + chosen++) % holders.length]

  const parentFor = ({ from, to }: FanOutEdge): Rank | undefined => {
    const here = topology.hostOf(to)!
    const own = heirs.get(here)
    if (own !== undefined && has.has(own) && topology.hostOf(from) === here) return own
    for (let rank = from, at: FanOutEdge | undefined; ; rank = at.from) {
      if (!dead.has(rank)) return has.has(rank) ? rank : otherHolder(here)
      const heir = heirs.get(topology.hostOf(rank)!)
      if (heir !== undefined && has.has(heir)) return heir
      at = given.get(rank)
      if (at === undefined) return otherHolder(here)
    }
  }

  for (const edge of tree.edges) {
    const { from, to } = edge
    if (dead.has(to)) continue
    if (!dead.has(from) && (has.has(from) || bundle.holders.includes(from))) {
      edges.push(edge)
      has.add(to)
      continue
    }
    const parent = parentFor(edge)
    if (parent === undefined) {
      lost.add(to)
      continue
    }
    if (parent === to) {
      // It had proven everything before its parent died.
      has.add(to)
      continue
    }
    const [there, here] = [topology.hostOf(parent)!, topology.hostOf(to)!]
    const isNear = there === here
    if (!isNear && topology.hostOf(from) === here) heirs.set(here, to)
    const linkOf = (host: number): number => tree.bundle % topology.topology.hosts[host]!.links.length
    edges.push(
      isNear
        ? { from: parent, to, via: "host", fromLink: -1, toLink: -1 }
        : {
            from: parent,
            to,
            via: "network",
            fromLink: linkOf(there),
            toLink: edge.toLink < 0 ? linkOf(here) : edge.toLink
          }
    )
    has.add(to)
  }
  return { tree: { ...tree, edges }, lost: [...lost] }
}
