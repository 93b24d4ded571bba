// SPDX-License-Identifier: Apache-2.0
/**
 * What a rank of a mesh holds of a tensor, in closed form: its local shape and, per tensor dimension, the global intervals
 * in local order. The shard is the product of its dimensions.
 *
 * Invariant: local order is ascending global order for every placement, and the shards along one dimension are a
 * partition of it. Cost: the number of intervals, never of elements.
 */
import * as Result from "effect/Result"
import type { Rank } from "../base/Ids.ts"
import { chunkInterval, formatShape, type Interval, lengthOf, type Shape } from "../base/Region.ts"
import { coordinateOf } from "./DeviceMesh.ts"
import { type MeshError, meshError } from "./MeshError.ts"
import { isSharding, type MeshLayout, resolveDims } from "./Placement.ts"

/** One mesh dimension that shards a tensor dimension. */
export interface DimSplit {
  readonly meshDim: number
  readonly parts: number
  /** Chunks that the piece is cut into first; 1 for a plain shard. */
  readonly splitFactor: number
}

/** Who shards tensor dimension `dim`, in order. The layout's dimensions are resolved. */
export const splitsOf = (layout: MeshLayout, dim: number): ReadonlyArray<DimSplit> =>
  layout.placements.flatMap((placement, meshDim) =>
    isSharding(placement) && placement.dim === dim
      ? [
          {
            meshDim,
            parts: layout.mesh.shape[meshDim]!,
            splitFactor: placement._tag === "StridedShard" ? placement.splitFactor : 1
          }
        ]
      : []
  )

/** Intervals of one shard beyond which a layout is refused: no tensor is cut so finely. */
const mostIntervals = 2 ** 20

/** False where a shard of `length` indices would have more intervals than anyone can handle. */
export const isCountable = (length: number, splits: ReadonlyArray<DimSplit>): boolean => {
  let intervals = 1
  for (const { splitFactor } of splits) {
    intervals *= Math.min(splitFactor, Math.max(1, length))
    if (intervals > mostIntervals) return false
  }
  return true
}

/** Positions, in ascending ranges, that part `index` keeps of a piece of `length`. */
const keptRanges = (length: number, split: DimSplit, index: number): ReadonlyArray<Interval> => {
  const kept: Array<Interval> = []
  const outer = Math.ceil(length / split.splitFactor)
  for (let start = 0; start < length; start += outer) {
    const [from, to] = chunkInterval(Math.min(outer, length - start), split.parts, index)
    if (from < to) kept.push([start + from, start + to])
  }
  return kept
}

/** The intervals at the given positions of a list of intervals; both ascend, and the positions lie in the list. */
export const intervalsAt = (
  intervals: ReadonlyArray<Interval>,
  positions: ReadonlyArray<Interval>
): ReadonlyArray<Interval> => {
  const taken: Array<[start: number, stop: number]> = []
  let [at, before] = [0, 0]
  for (const [from, to] of positions) {
    while (before + lengthOf(intervals[at]!) <= from) before += lengthOf(intervals[at++]!)
    for (let [next, passed] = [at, before]; next < intervals.length && passed < to; next++) {
      const [start, stop] = intervals[next]!
      const piece = [start + Math.max(0, from - passed), Math.min(stop, start + to - passed)] as [number, number]
      const last = taken.at(-1)
      if (last !== undefined && last[1] === piece[0]) last[1] = piece[1]
      else taken.push(piece)
      passed += stop - start
    }
  }
  return taken
}

/** Global intervals of the shard at `indices`, one index per split, along a dimension of `length`. */
export const heldIntervals = (
  length: number,
  splits: ReadonlyArray<DimSplit>,
  indices: ReadonlyArray<number>
): ReadonlyArray<Interval> => {
  let intervals: ReadonlyArray<Interval> = length === 0 ? [] : [[0, length]]
  for (const [at, split] of splits.entries()) {
    const left = intervals.reduce((sum, interval) => sum + lengthOf(interval), 0)
    if (left === 0) return []
    intervals = intervalsAt(intervals, keptRanges(left, split, indices[at]!))
  }
  return intervals
}

/** What one rank holds. */
export interface LocalShard {
  readonly shape: Shape
  /**
   * Smallest global index per dimension; the dimension's length where the rank holds none of it, so that an empty shard
   * never shares its offset with a real one.
   */
  readonly offset: ReadonlyArray<number>
  /** Per dimension, in local order. */
  readonly intervals: ReadonlyArray<ReadonlyArray<Interval>>
}

/** The shard of `rank`. Fails for a rank outside the mesh and for dimensions outside the tensor. */
export const localShard = (layout: MeshLayout, shape: Shape, rank: Rank): Result.Result<LocalShard, MeshError> => {
  const resolved = resolveDims(layout, shape.length)
  if (Result.isFailure(resolved)) return Result.fail(resolved.failure)
  const coordinate = coordinateOf(layout.mesh, rank)
  if (coordinate === undefined) {
    return meshError(
      "OutsideGroup",
      `The mesh [${layout.mesh.shape.join(",")}] does not have the rank.`,
      "Ask for ranks of the mesh.",
      [rank]
    )
  }
  const intervals: Array<ReadonlyArray<Interval>> = []
  for (const [dim, length] of shape.entries()) {
    const splits = splitsOf(resolved.success, dim)
    if (!isCountable(length, splits)) return uncountable(shape, dim)
    intervals.push(
      heldIntervals(
        length,
        splits,
        splits.map(({ meshDim }) => coordinate[meshDim]!)
      )
    )
  }
  return Result.succeed({
    intervals,
    shape: intervals.map((held) => held.reduce((sum, interval) => sum + lengthOf(interval), 0)),
    offset: intervals.map((held, dim) => held[0]?.[0] ?? shape[dim]!)
  })
}

const uncountable = (shape: Shape, dim: number): Result.Result<never, MeshError> =>
  meshError(
    "TooLarge",
    `Dimension ${dim} of ${formatShape(shape)} falls into more than ${mostIntervals} intervals per rank.`,
    "Use smaller split factors."
  )
