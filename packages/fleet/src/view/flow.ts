// SPDX-License-Identifier: Apache-2.0
/**
 * How one version comes to members: from whom to whom, and how far. Pure. Trees are drawn from what members state, so they
 * show what happens and not what was planned: who takes the rest from another stands below that one.
 */
import type { MemberProgress, VersionProgress } from "../progress/MemberProgress.ts"
import type { FleetMember } from "../version/FleetLog.ts"

/** One member in a tree. A tree is laid out as rows: whoever gets it from a member lies within that member's width. */
export interface TreeNode {
  readonly id: string
  /** -1 where nobody knows it. */
  readonly rank: number
  /** Position of its giver among the nodes; -1 for one that had it. Givers stand before those who get it from them. */
  readonly parent: number
  readonly depth: number
  /** Left and right end, in the width of the whole tree. */
  readonly start: number
  readonly end: number
  readonly bytes: number
  readonly done: number
}

/** One stripe of a version, and whom it reached. */
export interface TreeView {
  /** First byte of the stripe among all of the weights. */
  readonly stripe: number
  readonly nodes: ReadonlyArray<TreeNode>
  /** Rows. */
  readonly depth: number
}

/** What goes from one member to another. */
export interface LinkView {
  readonly from: string
  readonly to: string
  readonly bytes: number
  readonly done: number
}

/** One version on its way. */
export interface FlowView {
  readonly serial: number
  readonly trees: ReadonlyArray<TreeView>
  /** Those that carry most first. */
  readonly links: ReadonlyArray<LinkView>
}

interface Receiver {
  readonly id: string
  readonly from: string
  bytes: number
  done: number
}

/** Receivers of each stripe. */
const stripesOf = (versions: ReadonlyMap<string, VersionProgress>): ReadonlyMap<number, Map<string, Receiver>> => {
  const stripes = new Map<number, Map<string, Receiver>>()
  for (const [id, { parts }] of versions) {
    for (const { from, stripe, bytes, done } of parts) {
      const receivers = stripes.get(stripe) ?? new Map<string, Receiver>()
      stripes.set(stripe, receivers)
      const before = receivers.get(id)
      // The last giver is the one from whom the rest comes.
      receivers.set(id, { id, from, bytes: bytes + (before?.bytes ?? 0), done: done + (before?.done ?? 0) })
    }
  }
  return stripes
}

const treeOf = (stripe: number, receivers: ReadonlyMap<string, Receiver>, rankOf: (id: string) => number): TreeView => {
  const children = new Map<string, Array<string>>()
  for (const { id, from } of receivers.values()) {
    const known = children.get(from)
    if (known === undefined) children.set(from, [id])
    else known.push(id)
  }
  for (const ids of children.values()) ids.sort((a, b) => rankOf(a) - rankOf(b))
  const order: Array<{ readonly id: string; readonly parent: number; readonly depth: number }> = []
  const seen = new Set<string>()
  // A chain may be thousands of members deep, which is deeper than calls may be.
  const draw = (root: string): void => {
    const waiting = [{ id: root, parent: -1, depth: 0 }]
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      if (seen.has(next.id)) continue
      seen.add(next.id)
      const at = order.push(next) - 1
      const { depth } = next
      for (const id of (children.get(next.id) ?? []).toReversed()) waiting.push({ id, parent: at, depth: depth + 1 })
    }
  }
  const roots = [...children.keys()].filter((id) => !receivers.has(id)).sort((a, b) => rankOf(a) - rankOf(b))
  for (const root of roots) draw(root)
  // Statements of several moments may lead in a circle.
  for (const id of receivers.keys()) draw(id)
  const leaves = order.map(() => 0)
  const hasChild = new Set(order.map(({ parent }) => parent))
  for (let at = order.length - 1; at >= 0; at--) {
    if (!hasChild.has(at)) leaves[at] = 1
    const { parent } = order[at]!
    if (parent >= 0) leaves[parent]! += leaves[at]!
  }
  const whole = order.reduce((sum, { parent }, at) => (parent < 0 ? sum + leaves[at]! : sum), 0)
  const next = new Map<number, number>()
  let rootStart = 0
  const starts = order.map(({ parent }, at) => {
    const start = parent < 0 ? rootStart : next.get(parent)!
    if (parent < 0) rootStart += leaves[at]!
    else next.set(parent, start + leaves[at]!)
    next.set(at, start)
    return start
  })
  const nodes = order.map(({ id, parent, depth }, at): TreeNode => {
    const receiver = receivers.get(id)
    const [bytes, done] = [receiver?.bytes ?? 0, receiver?.done ?? 0]
    const [start, end] = [starts[at]! / whole, (starts[at]! + leaves[at]!) / whole]
    return { id, rank: rankOf(id), parent, depth, start, end, bytes, done }
  })
  return { stripe, nodes, depth: nodes.reduce((most, { depth }) => Math.max(most, depth + 1), 0) }
}

/** How a version comes to members; null where no member says anything of it. */
export const flowOf = (
  serial: number | undefined,
  members: ReadonlyMap<string, FleetMember>,
  progress: ReadonlyMap<string, MemberProgress>
): FlowView | null => {
  const versions = new Map<string, VersionProgress>()
  for (const { id, versions: all } of progress.values()) {
    const found = all.find((version) => version.serial === serial)
    if (found !== undefined && found.parts.length > 0) versions.set(id, found)
  }
  if (serial === undefined || versions.size === 0) return null
  const rankOf = (id: string): number => members.get(id)?.rank ?? -1
  const trees = [...stripesOf(versions)]
    .sort(([a], [b]) => a - b)
    .map(([stripe, receivers]) => treeOf(stripe, receivers, rankOf))
  const links = new Map<string, LinkView>()
  for (const [to, { parts }] of versions) {
    for (const { from, bytes, done } of parts) {
      const key = `${from} ${to}`
      const before = links.get(key)
      links.set(key, { from, to, bytes: bytes + (before?.bytes ?? 0), done: done + (before?.done ?? 0) })
    }
  }
  return { serial, trees, links: [...links.values()].sort((a, b) => b.bytes - a.bytes || (a.to < b.to ? -1 : 1)) }
}
