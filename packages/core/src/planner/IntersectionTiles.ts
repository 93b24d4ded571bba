// SPDX-License-Identifier: Apache-2.0
/**
 * Tiles by intersecting global intervals: for uneven shards, different dimensions on the two sides, and sides that are
 * replicated.
 *
 * Invariant: every part of the destination shard has one sender, the preferred one where it holds the part.
 */
import * as Result from "effect/Result"
import { fullRegion, type Interval, intersectIntervals, lengthOf } from "../base/Region.ts"
import {
  isSharded,
  mostSteps,
  type Segment,
  type ShardedSide,
  segmentsOf,
  type Tile,
  type Tiles,
  tooManyTiles
} from "./ShardSegments.ts"

interface Piece {
  readonly source: number
  readonly sourceRegion: Array<Interval>
  readonly destinationRegion: Array<Interval>
}

/** Cuts the destination's segments at the source's boundaries and picks one holder for each part. */
export const intersectionTiles = (
  source: ShardedSide,
  destination: ShardedSide,
  destinationIndex: number,
  preferredSource: number
): Tiles => {
  const mine = destination.shards[destinationIndex]!
  const first = source.shards[0]!
  const destinationDim = isSharded(mine) ? mine.partitionDim : undefined
  const sourceDim = isSharded(first) ? first.partitionDim : undefined
  const destinationSegments: ReadonlyArray<Segment> =
    destinationDim === undefined
      ? [{ global: [0, Number.MAX_SAFE_INTEGER], local: 0 }]
      : segmentsOf(mine, destinationIndex, destination.shards.length)
  const sourceSegments = source.shards.flatMap((shard, index) =>
    sourceDim === undefined
      ? [{ index, global: [0, Number.MAX_SAFE_INTEGER] as Interval, local: 0 }]
      : segmentsOf(shard, index, source.shards.length).map((segment) => ({ index, ...segment }))
  )
  const pieces: Array<Piece> = []
  const emit = (index: number, sourceCut: Interval | undefined, destinationCut: Interval | undefined, shift: Shift) => {
    const sourceRegion = [...fullRegion(source.shards[index]!.shape)]
    const destinationRegion = [...fullRegion(mine.shape)]
    if (sourceCut !== undefined && sourceDim !== undefined) {
      sourceRegion[sourceDim] = [sourceCut[0] - shift.source, sourceCut[1] - shift.source]
      if (sourceDim !== destinationDim) destinationRegion[sourceDim] = sourceCut
    }
    if (destinationCut !== undefined && destinationDim !== undefined) {
      destinationRegion[destinationDim] = [destinationCut[0] - shift.destination, destinationCut[1] - shift.destination]
      if (sourceDim !== destinationDim) sourceRegion[destinationDim] = destinationCut
    }
    pieces.push({ source: index, sourceRegion, destinationRegion })
  }
  const boundaries = [...new Set(sourceSegments.flatMap((segment) => segment.global))].sort((a, b) => a - b)
  if (boundaries.length * sourceSegments.length * destinationSegments.length > mostSteps) {
    const counts = `${sourceSegments.length} segments at the source and ${destinationSegments.length} of one rank at the destination`
    return Result.fail(tooManyTiles(`There are ${counts}`))
  }
  for (const wanted of destinationSegments) {
    const range: Interval =
      sourceDim === destinationDim || destinationDim === undefined ? wanted.global : [0, Number.MAX_SAFE_INTEGER]
    for (let cut = 0; cut + 1 < boundaries.length; cut++) {
      const part = intersectIntervals([boundaries[cut]!, boundaries[cut + 1]!], range)
      if (part === undefined) continue
      const holders = sourceSegments.filter((segment) => segment.global[0] <= part[0] && part[1] <= segment.global[1])
      const holder =
        holders.find((segment) => segment.index === preferredSource) ??
        holders[destinationIndex % Math.max(1, holders.length)]
      if (holder === undefined) continue
      const shift = { source: holder.global[0] - holder.local, destination: wanted.global[0] - wanted.local }
      emit(
        holder.index,
        sourceDim === undefined ? undefined : part,
        sourceDim === destinationDim ? part : wanted.global,
        shift
      )
    }
  }
  return Result.succeed(
    mergeNeighbours(pieces, sourceDim).filter((tile) =>
      tile.destinationRegion.every((interval) => lengthOf(interval) > 0)
    )
  )
}

interface Shift {
  readonly source: number
  readonly destination: number
}

/** Joins parts that continue each other at both ends, so that a boundary of another rank costs no extra operation. */
const mergeNeighbours = (pieces: ReadonlyArray<Piece>, dim: number | undefined): ReadonlyArray<Tile> => {
  const merged: Array<Piece> = []
  for (const piece of pieces) {
    const last = merged[merged.length - 1]
    const continues =
      last !== undefined &&
      dim !== undefined &&
      last.source === piece.source &&
      last.sourceRegion[dim]![1] === piece.sourceRegion[dim]![0] &&
      last.destinationRegion[dim]![1] === piece.destinationRegion[dim]![0] &&
      piece.destinationRegion.every(
        (interval, at) => at === dim || equalIntervals(interval, last.destinationRegion[at]!)
      )
    if (!continues) {
      merged.push(piece)
      continue
    }
    last.sourceRegion[dim] = [last.sourceRegion[dim]![0], piece.sourceRegion[dim]![1]]
    last.destinationRegion[dim] = [last.destinationRegion[dim]![0], piece.destinationRegion[dim]![1]]
  }
  return merged
}

const equalIntervals = (a: Interval, b: Interval): boolean => a[0] === b[0] && a[1] === b[1]
