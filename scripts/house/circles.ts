// SPDX-License-Identifier: Apache-2.0
/** Circles among modules and among packages: types count, and so do imports that wait until they are needed. */
import { resolve } from "./exports.ts"
import type { Measure, Place } from "./measure.ts"
import { moduleOf } from "./syntax.ts"
import type { Tree } from "./tree.ts"

/** From a node to those it leads to, each with the place that does. */
type Graph = ReadonlyMap<string, ReadonlyMap<string, string>>

/** Groups of nodes that all lead to one another. */
const knots = (graph: Graph): ReadonlyArray<ReadonlyArray<string>> => {
  const order = new Map<string, number>()
  const lowest = new Map<string, number>()
  const open: Array<string> = []
  const isOpen = new Set<string>()
  const found: Array<ReadonlyArray<string>> = []
  const visit = (node: string): void => {
    order.set(node, order.size)
    lowest.set(node, order.get(node)!)
    open.push(node)
    isOpen.add(node)
    for (const next of graph.get(node)?.keys() ?? []) {
      if (!order.has(next)) visit(next)
      if (isOpen.has(next)) lowest.set(node, Math.min(lowest.get(node)!, lowest.get(next)!))
    }
    if (lowest.get(node) !== order.get(node)) return
    const knot = open.splice(open.indexOf(node))
    for (const each of knot) isOpen.delete(each)
    if (knot.length > 1 || graph.get(node)?.has(node)) found.push(knot.sort())
  }
  for (const node of graph.keys()) if (!order.has(node)) visit(node)
  return found.sort((left, right) => right.length - left.length || (left[0]! < right[0]! ? -1 : 1))
}

/** The shortest way from a node back to itself. */
const wayBack = (graph: Graph, start: string, within: ReadonlySet<string>): ReadonlyArray<string> => {
  const before = new Map<string, string>()
  const queue = [start]
  for (const node of queue)
    for (const next of graph.get(node)?.keys() ?? []) {
      if (next === start) {
        const way = [node]
        while (way[0] !== start) way.unshift(before.get(way[0]!)!)
        return way
      }
      if (!within.has(next) || before.has(next)) continue
      before.set(next, node)
      queue.push(next)
    }
  return []
}

const described = (graph: Graph, knot: ReadonlyArray<string>): Place => {
  const within = new Set(knot)
  const ways = knot.map((node) => wayBack(graph, node, within)).filter((way) => way.length > 0)
  const way = ways.reduce((best, each) => (each.length < best.length ? each : best))
  const at = graph.get(way[0]!)!.get(way[1] ?? way[0]!)!
  return { at, name: [...way, way[0]!].join(" -> "), figure: knot.length }
}

const measured = (key: string, title: string, graph: Graph): Measure => {
  const offenders = knots(graph).map((knot) => described(graph, knot))
  return { key, title, figure: offenders.length, limit: 0, offenders }
}

export const circles = (tree: Tree): ReadonlyArray<Measure> => {
  const modules = new Map<string, Map<string, string>>()
  const packages = new Map<string, Map<string, string>>()
  for (const file of tree.files) {
    if (file.kind !== "source" || file.language !== "ts") continue
    const edges = new Map<string, string>()
    modules.set(file.path, edges)
    const own = packages.get(file.area) ?? new Map<string, string>()
    packages.set(file.area, own)
    for (const { specifier, line } of moduleOf(file).imports) {
      const resolution = resolve(tree, file, specifier)
      if (resolution.kind !== "module") continue
      const at = `${file.path}:${line}`
      const target = tree.byPath.get(resolution.path)
      if (target === undefined) continue
      if (target.kind === "source" && !edges.has(target.path)) edges.set(target.path, at)
      if (target.area !== file.area && target.area.startsWith("packages/") && !own.has(target.area))
        own.set(target.area, at)
    }
  }
  return [
    measured("module-circles", "circles of imports between modules", modules),
    measured("package-circles", "circles of imports between packages", packages)
  ]
}
