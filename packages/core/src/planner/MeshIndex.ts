// SPDX-License-Identifier: Apache-2.0
/**
 * What planning from a map needs again and again: who holds which shard on each side, and the grids of the lengths met so
 * far. Make it once per map.
 *
 * Invariant: a shard is known by its indices along the tensor's dimensions, or by their row-major number (its key); shard
 * keys, positions in a mesh and ranks are three different numbers.
 */
import type { Rank } from "../base/Ids.ts"
import type { Shape } from "../base/Region.ts"
import type { M2MMap } from "../ir/M2MMap.ts"
import { coordinateAt, meshStrides } from "../layout/DeviceMesh.ts"
import type { MeshLayout } from "../layout/Placement.ts"
import { type DimSplit, splitsOf } from "../layout/ShardIntervals.ts"
import { type DimGrid, dimGrid, type Overlap, shardCount } from "./MeshGrid.ts"

/** One side of a map. Positions are places in the side's list of ranks. */
export interface MeshSide {
  readonly layout: MeshLayout
  readonly positionOf: ReadonlyMap<Rank, number>
  /** Per dimension of the map. */
  readonly splits: ReadonlyArray<ReadonlyArray<DimSplit>>
  /** Shards along each of them. */
  readonly counts: ReadonlyArray<number>
  /** Shard indices of each position, per dimension of the map. */
  readonly shardOf: ReadonlyArray<ReadonlyArray<number>>
  /** Shard key of each position. */
  readonly keyOf: ReadonlyArray<number>
  /** Positions that hold each shard, ascending: all coordinates of the mesh dimensions that do not shard. */
  readonly holders: ReadonlyArray<ReadonlyArray<number>>
  /** Place of each position among the holders of its shard. */
  readonly placeOf: ReadonlyArray<number>
}

/** Tensors and maps prepared so that any rank's plan is made without a look at all ranks. */
export interface MeshIndex {
  /** The two layouts and the grid of cells that both cut a tensor into. */
  readonly map: M2MMap
  /** Who holds which shard before. */
  readonly source: MeshSide
  /** Who holds which shard after. */
  readonly target: MeshSide
  /** Whether values of the source are contributions that are reduced on the way. */
  readonly isPartial: boolean
  /** Source positions that hold the parts of one cell beside `position`, itself among them, by ascending rank. */
  readonly groupOf: (position: number) => ReadonlyArray<number>
  /** The cells of a tensor of this shape, by dimension. */
  readonly gridsOf: (shape: Shape) => ShapeGrid
}

/** The grids of one shape, one per dimension. */
export type ShapeGrid = ReadonlyArray<DimGrid>

const mixedRadix = (indices: ReadonlyArray<number>, counts: ReadonlyArray<number>): number =>
  indices.reduce((key, index, at) => key * counts[at]! + index, 0)

const indexSide = (layout: MeshLayout, dims: number): MeshSide => {
  const splits = Array.from({ length: dims }, (_, dim) => splitsOf(layout, dim))
  const counts = splits.map(shardCount)
  const holders = Array.from({ length: counts.reduce((product, count) => product * count, 1) }, () => [] as number[])
  const shardOf: Array<ReadonlyArray<number>> = []
  const keyOf: Array<number> = []
  const placeOf: Array<number> = []
  for (const position of layout.mesh.ranks.keys()) {
    const coordinate = coordinateAt(layout.mesh, position)
    const shard = splits.map((own) =>
      mixedRadix(
        own.map(({ meshDim }) => coordinate[meshDim]!),
        own.map(({ parts }) => parts)
      )
    )
    const key = mixedRadix(shard, counts)
    shardOf.push(shard)
    keyOf.push(key)
    placeOf.push(holders[key]!.length)
    holders[key]!.push(position)
  }
  const positionOf = new Map(layout.mesh.ranks.map((rank, position) => [rank, position]))
  return { layout, positionOf, splits, counts, shardOf, keyOf, holders, placeOf }
}

const partialGroups = (layout: MeshLayout): ((position: number) => ReadonlyArray<number>) => {
  const { mesh, placements } = layout
  const strides = meshStrides(mesh)
  const dims = placements.flatMap((placement, dim) => (placement._tag === "Partial" ? [dim] : []))
  const groups = new Map<number, ReadonlyArray<number>>()
  return (position) => {
    const coordinate = coordinateAt(mesh, position)
    const first = dims.reduce((at, dim) => at - coordinate[dim]! * strides[dim]!, position)
    const known = groups.get(first)
    if (known !== undefined) return known
    let members = [first]
    for (const dim of dims) {
      members = members.flatMap((at) =>
        Array.from({ length: mesh.shape[dim]! }, (_, step) => at + step * strides[dim]!)
      )
    }
    members.sort((a, b) => mesh.ranks[a]! - mesh.ranks[b]!)
    groups.set(first, members)
    return members
  }
}

const wholeDim: ReadonlyArray<DimSplit> = []

/** Grids that are kept: a model has few lengths, and a grid of large meshes is not small. */
const mostGrids = 64

/** The index of a map. It keeps the grids that it has made, so one index serves all tensors. */
export const indexMap = (map: M2MMap): MeshIndex => {
  const dims = map.cellCounts.length
  const source = indexSide(map.source, dims)
  const target = indexSide(map.target, dims)
  const known = new Map<string, DimGrid>()
  const gridOf = (dim: number, length: number): DimGrid => {
    const isCut = dim < dims && source.splits[dim]!.length + target.splits[dim]!.length > 0
    const key = isCut ? `${dim}:${length}` : `whole:${length}`
    const found = known.get(key)
    if (found !== undefined) return found
    const grid = isCut
      ? dimGrid(length, map.cellCounts[dim]!, source.splits[dim]!, target.splits[dim]!)
      : dimGrid(length, 1, wholeDim, wholeDim)
    if (known.size >= mostGrids) known.clear()
    known.set(key, grid)
    return grid
  }
  return {
    map,
    source,
    target,
    isPartial: map.sourcePartialReductions.length > 0,
    groupOf: partialGroups(map.source),
    gridsOf: (shape) => shape.map((length, dim) => gridOf(dim, length))
  }
}

/** The shard indices of a position for a tensor of `dims` dimensions; what the map does not reach is not cut. */
export const shardIndices = (side: MeshSide, position: number, dims: number): ReadonlyArray<number> => {
  const own = side.shardOf[position]!
  return Array.from({ length: dims }, (_, dim) => own[dim] ?? 0)
}

/** A source shard and a target shard that meet. */
export interface ShardPair {
  /** Keys of the shards. */
  readonly source: number
  readonly target: number
  /** What they share, per dimension. */
  readonly overlaps: ReadonlyArray<Overlap>
  readonly cells: number
}

const pairOf = (index: MeshIndex, overlaps: ReadonlyArray<Overlap>): ShardPair => {
  const { counts: sourceCounts } = index.source
  const { counts: targetCounts } = index.target
  let [source, target, cells] = [0, 0, 1]
  for (let dim = 0; dim < sourceCounts.length; dim++) {
    source = source * sourceCounts[dim]! + (overlaps[dim]?.source ?? 0)
    target = target * targetCounts[dim]! + (overlaps[dim]?.target ?? 0)
  }
  for (const overlap of overlaps) cells *= overlap.cells
  return { source, target, overlaps, cells }
}

/** Every choice of one overlap per dimension, the last varying fastest. */
const pairsOf = (index: MeshIndex, choices: ReadonlyArray<ReadonlyArray<Overlap>>): ReadonlyArray<ShardPair> => {
  if (choices.some((partners) => partners.length === 0)) return []
  const pairs: Array<ShardPair> = []
  const at = choices.map(() => 0)
  while (true) {
    pairs.push(
      pairOf(
        index,
        choices.map((partners, dim) => partners[at[dim]!]!)
      )
    )
    let dim = choices.length - 1
    while (dim >= 0 && ++at[dim]! === choices[dim]!.length) at[dim--] = 0
    if (dim < 0) return pairs
  }
}

/** The pairs of a shard of one side with the shards of the other that it meets, in row-major order. */
export const pairsOfShard = (
  index: MeshIndex,
  grid: ShapeGrid,
  shard: ReadonlyArray<number>,
  side: "bySource" | "byTarget"
): ReadonlyArray<ShardPair> =>
  pairsOf(
    index,
    grid.map((dimension, dim) => dimension[side][shard[dim]!]!)
  )
