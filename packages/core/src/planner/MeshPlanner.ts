// SPDX-License-Identifier: Apache-2.0
/**
 * From two layouts to the map between them, and from the map to its routes. Pure, in integers throughout: a number that
 * could not be exact is refused.
 */
import * as Result from "effect/Result"
import type { Rank } from "../base/Ids.ts"
import type { M2MMap, SourceChoice } from "../ir/M2MMap.ts"
import type { CellRef, Route } from "../ir/Route.ts"
import { type MeshError, meshError } from "../layout/MeshError.ts"
import { formatMeshLayout } from "../layout/MeshText.ts"
import { isSharding, type MeshLayout, type PartialOp, resolveDims } from "../layout/Placement.ts"
import { splitsOf } from "../layout/ShardIntervals.ts"
import { boxRegions, rangeBoxes } from "./CellBoxes.ts"
import { evenLength, lcm, shardCount } from "./MeshGrid.ts"
import { type MeshIndex, pairsOfShard, shardIndices } from "./MeshIndex.ts"
import { shipmentRule } from "./SourceShares.ts"

/** How sources are chosen among replicas. */
export interface MeshMapOptions {
  /** `balanced` by default. */
  readonly sourceChoice?: SourceChoice
  /** Dimensions of the tensors; needed for placements that count from the last. */
  readonly tensorRank?: number
}

const resolve = (layout: MeshLayout, tensorRank: number | undefined): Result.Result<MeshLayout, MeshError> => {
  if (tensorRank !== undefined) return resolveDims(layout, tensorRank)
  const negative = layout.placements.find((placement) => isSharding(placement) && placement.dim < 0)
  return negative === undefined
    ? Result.succeed(layout)
    : meshError(
        "DimOutOfRange",
        `${formatMeshLayout(layout)} counts a dimension from the last, but the tensors' dimensions are not stated.`,
        "State the tensor rank, or count from the first."
      )
}

const partialReductions = (layout: MeshLayout): ReadonlyArray<readonly [meshDim: number, op: PartialOp]> =>
  layout.placements.flatMap((placement, dim) => (placement._tag === "Partial" ? [[dim, placement.op] as const] : []))

/** The map between two layouts, equal on all ranks that ask for it. */
export const planMesh = (
  from: MeshLayout,
  to: MeshLayout,
  options: MeshMapOptions = {}
): Result.Result<M2MMap, MeshError> => {
  const resolved = Result.flatMap(resolve(from, options.tensorRank), (source) =>
    Result.map(resolve(to, options.tensorRank), (target) => ({ source, target }))
  )
  if (Result.isFailure(resolved)) return Result.fail(resolved.failure)
  const { source, target } = resolved.success
  if (partialReductions(target).length > 0) {
    return meshError(
      "PartialTarget",
      `Target ${formatMeshLayout(target)} is partial: which rank would hold which contribution is not defined, and a sum can be split in any way.`,
      "Replicate or shard the target, and make contributions where they are needed."
    )
  }
  const reductions = partialReductions(source)
  if (new Set(reductions.map(([, op]) => op)).size > 1) {
    return meshError(
      "MixedReductions",
      `Source ${formatMeshLayout(source)} mixes reductions, whose result depends on their order.`,
      "Reduce all but one of them first."
    )
  }
  const dims = Math.max(
    1,
    ...[source, target].flatMap(({ placements }) =>
      placements.map((placement) => (isSharding(placement) ? placement.dim + 1 : 0))
    )
  )
  const cellCounts: Array<number> = []
  for (let dim = 0; dim < dims; dim++) {
    const [own, other] = [evenLength(splitsOf(source, dim)), evenLength(splitsOf(target, dim))]
    const cells = own === undefined || other === undefined ? undefined : lcm(own, other)
    if (cells === undefined) return tooManyCells(source, target)
    cellCounts.push(cells)
  }
  // Deliveries are numbered, so that many must be countable.
  const deliveries = cellCounts.reduce((product, count) => product * BigInt(count), BigInt(target.mesh.ranks.length))
  if (deliveries > BigInt(Number.MAX_SAFE_INTEGER)) return tooManyCells(source, target)
  const slicers = (layout: MeshLayout) => cellCounts.map((count, dim) => count / shardCount(splitsOf(layout, dim)))
  return Result.succeed({
    format: "tensorferry.m2m-map",
    version: 1,
    source,
    target,
    sourceChoice: options.sourceChoice ?? "balanced",
    tensorRank: options.tensorRank ?? null,
    cellCounts,
    sourceNumSlicers: slicers(source),
    targetNumSlicers: slicers(target),
    sourcePartialReductions: reductions
  })
}

const tooManyCells = (source: MeshLayout, target: MeshLayout): Result.Result<never, MeshError> =>
  meshError(
    "TooLarge",
    `${formatMeshLayout(source)} and ${formatMeshLayout(target)} have more than 2^53 common cells.`,
    "Use smaller split factors or meshes."
  )

interface CellRoute {
  readonly cell: ReadonlyArray<number>
  readonly dsts: Array<CellRef>
}

const compare = (a: ReadonlyArray<number>, b: ReadonlyArray<number>): number => {
  const at = a.findIndex((value, dim) => value !== b[dim])
  return at < 0 ? 0 : a[at]! - b[at]!
}

/** Each cell of a box that starts at `first`, with the cell at the same place of another box. */
const visitCells = (
  first: ReadonlyArray<number>,
  other: ReadonlyArray<number>,
  lengths: ReadonlyArray<number>,
  each: (cell: ReadonlyArray<number>, partner: ReadonlyArray<number>) => void
): void => {
  const step = (dim: number, cell: ReadonlyArray<number>, partner: ReadonlyArray<number>): void => {
    if (dim === lengths.length) each(cell, partner)
    else {
      for (let at = 0; at < lengths[dim]!; at++)
        step(dim + 1, [...cell, first[dim]! + at], [...partner, other[dim]! + at])
    }
  }
  step(0, [], [])
}

/**
 * The routes of one source rank, or of all: for every cell of its shard that it ships or contributes to, sorted by rank and
 * cell. Cost: the cells of those shards.
 */
export const routesOf = (index: MeshIndex, rank?: Rank): ReadonlyArray<Route> => {
  const { map, source, target } = index
  const grid = index.gridsOf(map.cellCounts)
  const shipmentsOf = shipmentRule(index)
  const ranks = source.layout.mesh.ranks
  const wanted = rank === undefined ? undefined : source.positionOf.get(rank)
  if (rank !== undefined && wanted === undefined) return []
  const shards = wanted === undefined ? source.holders.map((_, key) => key) : [source.keyOf[wanted]!]
  const routes: Array<Route> = []
  for (const key of shards) {
    const shard = shardIndices(source, source.holders[key]![0]!, map.cellCounts.length)
    const shipped = new Map<number, Map<string, CellRoute>>()
    const routesFrom = (position: number): Map<string, CellRoute> => {
      const known = shipped.get(position)
      if (known !== undefined) return known
      const made = new Map<string, CellRoute>()
      shipped.set(position, made)
      return made
    }
    const add = (position: number, cell: ReadonlyArray<number>, dsts: ReadonlyArray<CellRef>): void => {
      const own = routesFrom(position)
      const known = own.get(cell.join())
      if (known === undefined) own.set(cell.join(), { cell, dsts: [...dsts] })
      else known.dsts.push(...dsts)
    }
    for (const pair of pairsOfShard(index, grid, shard, "bySource")) {
      for (const { holder, targets, cells } of shipmentsOf(grid, pair)) {
        const boxes = rangeBoxes(
          pair.overlaps.map((overlap) => overlap.cells),
          cells
        )
        const members = index.isPartial ? index.groupOf(holder).filter((member) => member !== holder) : []
        for (const region of boxes.flatMap((box) => boxRegions(pair.overlaps, box))) {
          const lengths = region.source.map(([start, stop]) => stop - start)
          visitCells(region.sourceCell, region.targetCell, lengths, (cell, partner) => {
            add(
              holder,
              cell,
              targets.map((position) => ({ rank: target.layout.mesh.ranks[position]!, cell: partner }))
            )
            for (const member of members) add(member, cell, [])
          })
        }
      }
    }
    for (const [position, own] of shipped) {
      if (wanted !== undefined && position !== wanted) continue
      for (const { cell, dsts } of own.values()) {
        const src: CellRef = { rank: ranks[position]!, cell }
        const local = dsts.filter((dst) => dst.rank === src.rank)
        const remote = dsts.filter((dst) => dst.rank !== src.rank).sort((a, b) => a.rank - b.rank)
        if (local.length > 0) routes.push({ kind: "local", src, dsts: local })
        if (remote.length > 0) routes.push({ kind: remote.length > 1 ? "broadcast" : "p2p", src, dsts: remote })
        if (dsts.length === 0) routes.push({ kind: "none", src, dsts: [] })
      }
    }
  }
  return routes.sort((a, b) => a.src.rank - b.src.rank || compare(a.src.cell, b.src.cell))
}
