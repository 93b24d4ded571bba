// SPDX-License-Identifier: Apache-2.0
/** A fan-out in words: its trees as people draw them, and what each link carries. */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { TopologyIndex } from "../topology/Topology.ts"
import type { Demand } from "./Demand.ts"
import { type FanOut, type FanOutEdge, type FanOutTree, linkBytes } from "./FanOut.ts"

const bytesText = (bytes: number): string => {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"]
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3))
  return `${Number((bytes / 1000 ** power).toPrecision(4))} ${units[power]}`
}

const linesOf = (tree: FanOutTree, topology: TopologyIndex): ReadonlyArray<string> => {
  const { hosts } = topology.topology
  const nameOf = (rank: Rank): string => hosts[topology.hostOf(rank) ?? -1]?.id ?? "no host"
  const linkOf = (rank: Rank, link: number): string =>
    hosts[topology.hostOf(rank) ?? -1]?.links[link]?.name ?? `link ${link}`
  const children = new Map<Rank, Array<FanOutEdge>>()
  const receivers = new Set<Rank>()
  const lines: Array<string> = []
  for (const edge of tree.edges) {
    if (edge.via === "own") continue
    receivers.add(edge.to)
    const known = children.get(edge.from)
    if (known === undefined) children.set(edge.from, [edge])
    else known.push(edge)
  }
  // A chain may be thousands of hosts deep, which is deeper than calls may be.
  const roots = [...children.keys()].filter((rank) => !receivers.has(rank)).reverse()
  const waiting = roots.map((rank) => ({ rank, depth: 1, how: `on ${nameOf(rank)}` }))
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    const { rank, depth, how } = next
    lines.push(`${"  ".repeat(depth)}rank ${rank} ${how}`)
    for (const { to, via, fromLink, toLink } of (children.get(rank) ?? []).toReversed()) {
      const over = via === "host" ? "" : `, ${linkOf(rank, fromLink)} to ${linkOf(to, toLink)}`
      waiting.push({ rank: to, depth: depth + 1, how: `on ${nameOf(to)}${over}` })
    }
  }
  return lines
}

/** What to leave out. */
export interface DescribeOptions {
  /** Lines of trees; all by default. What is left out is counted. */
  readonly mostLines?: number
}

/** Lines for people: the figures, each tree with its ranks below those that send to them, then every link in use. */
export const describeFanOut = (
  fanOut: FanOut,
  demand: Demand,
  topology: TopologyIndex,
  { mostLines = Number.POSITIVE_INFINITY }: DescribeOptions = {}
): string => {
  const { bound, trees, chunkBytes, children, predictedSeconds } = fanOut
  const bytes = trees.reduce((sum, tree) => sum + tree.bytes, 0)
  const head = [
    `${bytesText(bytes)} in ${trees.length} trees of up to ${children} children, chunks of ${bytesText(chunkBytes)}`,
    `at least ${bound.seconds.toPrecision(3)} s (${bound.reason}), ${predictedSeconds.toPrecision(3)} s expected`
  ]
  const drawn = trees.flatMap((tree) => {
    const { key, wanters } = demand.bundles[tree.bundle]!
    const what = `${key} from byte ${tree.offset}: ${bytesText(tree.bytes)} to ${wanters.length} ranks`
    return [what, ...linesOf(tree, topology)]
  })
  const shown = drawn.slice(0, mostLines)
  if (shown.length < drawn.length) shown.push(`... ${drawn.length - shown.length} lines more`)
  const { hosts } = topology.topology
  const links = linkBytes(fanOut, topology)
    .filter(({ sent, received }) => sent + received > 0)
    .map(({ host, link, sent, received }) => {
      const { id, links: all } = hosts[host]!
      return `${id} ${all[link]!.name}: ${bytesText(sent)} sent, ${bytesText(received)} received`
    })
  return [...head, "", ...shown, "", ...links].join("\n")
}
