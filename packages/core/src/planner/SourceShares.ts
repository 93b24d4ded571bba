// SPDX-License-Identifier: Apache-2.0
/**
 * Which holder of a source shard serves whom: the rules of `SourceChoice`.
 *
 * Invariant: every cell that a target holds is delivered to it once. Balanced choice numbers the deliveries of one source
 * shard (over the target shards that it meets, their holders, and the cells they share) and gives each of the r holders a
 * run of floor(m / r) or ceil(m / r) of the m deliveries, so rounding favours nobody by more than one cell and pieces stay
 * large. Whoever plans for any rank finds the same numbers.
 */
import type { Interval } from "../base/Region.ts"
import { overlapOf, sourceCells } from "./MeshGrid.ts"
import { type MeshIndex, type ShapeGrid, type ShardPair, shardIndices } from "./MeshIndex.ts"

/** A holder that sends cells of a pair of shards. */
export interface Shipment {
  /** Position in the source mesh. */
  readonly holder: number
  /** Positions in the target mesh, ascending. */
  readonly targets: ReadonlyArray<number>
  /** Of the cells that the two shards share, by their row-major number. */
  readonly cells: Interval
}

/** Cuts `total` things into `parts` runs that differ by at most one. */
const shares = (total: number, parts: number) => {
  const least = Math.floor(total / parts)
  const larger = total % parts
  return {
    startOf: (part: number): number => part * least + Math.min(part, larger),
    partOf: (at: number): number =>
      at < larger * (least + 1)
        ? Math.floor(at / (least + 1))
        : larger + Math.floor((at - larger * (least + 1)) / least)
  }
}

export type ShipmentsOf = (grid: ShapeGrid, pair: ShardPair) => ReadonlyArray<Shipment>

/** The rule of the map. */
export const shipmentRule = (index: MeshIndex): ShipmentsOf => {
  const { source, target, map, isPartial } = index
  const sourceSize = source.layout.mesh.ranks.length

  /** The position at which a target position's own rank holds this source shard. */
  const ownHolder = (position: number, shard: number): number | undefined => {
    const own = source.positionOf.get(target.layout.mesh.ranks[position]!)
    return own !== undefined && source.keyOf[own] === shard ? own : undefined
  }

  /** Cells that the pair's source shard shares with the target shard of a position; 0 where they do not meet. */
  const cellsWith = (grid: ShapeGrid, pair: ShardPair, position: number): number => {
    let cells = 1
    for (const [dim, other] of shardIndices(target, position, grid.length).entries()) {
      cells *= overlapOf(grid[dim]!, pair.overlaps[dim]!.source, other)?.cells ?? 0
    }
    return cells
  }

  /**
   * Deliveries of the pair's source shard: all, and those to target shards before the pair's. Prefix sums along the
   * dimensions count them as if every holder of a target shard were served; what ranks keep is then taken off.
   */
  const countDeliveries = (grid: ShapeGrid, pair: ShardPair): { readonly total: number; readonly before: number } => {
    let [total, before, row] = [1, 0, 1]
    for (const [dim, overlap] of pair.overlaps.entries()) {
      const cells = sourceCells(grid[dim]!, overlap.source)
      before = before * cells + row * overlap.cellsBefore
      row *= overlap.cells
      total *= cells
    }
    if (isPartial) return { total, before }
    const replicas = target.holders[pair.target]!.length
    total *= replicas
    before *= replicas
    for (const holder of source.holders[pair.source]!) {
      const own = target.positionOf.get(source.layout.mesh.ranks[holder]!)
      if (own === undefined) continue
      const kept = cellsWith(grid, pair, own)
      total -= kept
      if (target.keyOf[own]! < pair.target) before -= kept
    }
    return { total, before }
  }

  /** The holders that share `cells` deliveries from number `first` on. */
  const shared = (
    holders: ReadonlyArray<number>,
    total: number,
    first: number,
    cells: number
  ): ReadonlyArray<Omit<Shipment, "targets">> => {
    const { startOf, partOf } = shares(total, holders.length)
    const out: Array<Omit<Shipment, "targets">> = []
    for (let part = partOf(first); part < holders.length && startOf(part) < first + cells; part++) {
      const [start, stop] = [Math.max(first, startOf(part)), Math.min(first + cells, startOf(part + 1))]
      out.push({ holder: holders[part]!, cells: [start - first, stop - first] })
    }
    return out
  }

  const balanced: ShipmentsOf = (grid, pair) => {
    const holders = source.holders[pair.source]!
    const targets = target.holders[pair.target]!
    if (holders.length === 1) return [{ holder: holders[0]!, targets, cells: [0, pair.cells] }]
    const { total, before } = countDeliveries(grid, pair)
    if (isPartial) return shared(holders, total, before, pair.cells).map((share) => ({ ...share, targets }))
    // Targets that get the same cells from the same holder are served together.
    const shipments = new Map<string, Shipment & { readonly targets: Array<number> }>()
    const add = ({ holder, cells }: Omit<Shipment, "targets">, position: number): void => {
      const key = `${holder}:${cells[0]}:${cells[1]}`
      const known = shipments.get(key)
      if (known === undefined) shipments.set(key, { holder, cells, targets: [position] })
      else known.targets.push(position)
    }
    let first = before
    for (const position of targets) {
      const own = ownHolder(position, pair.source)
      if (own !== undefined) add({ holder: own, cells: [0, pair.cells] }, position)
      else {
        for (const share of shared(holders, total, first, pair.cells)) add(share, position)
        first += pair.cells
      }
    }
    return [...shipments.values()]
  }

  const etha: ShipmentsOf = (_, pair) => {
    const holders = source.holders[pair.source]!
    const byHolder = new Map<number, Array<number>>()
    for (const position of target.holders[pair.target]!) {
      const holder = holders[source.placeOf[position % sourceSize]!]!
      const targets = byHolder.get(holder)
      if (targets === undefined) byHolder.set(holder, [position])
      else targets.push(position)
    }
    return [...byHolder].map(([holder, targets]) => ({ holder, targets, cells: [0, pair.cells] }))
  }

  return map.sourceChoice === "etha" ? etha : balanced
}
