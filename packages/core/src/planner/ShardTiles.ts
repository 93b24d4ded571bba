/**
 * Which parts of which source shards make up one destination shard of one parameter.
 *
 * Two ways, chosen by how the shards are described:
 * - Equal shards on one dimension are cut in micro-tiles: with Ns = ranks x stride at the source and Nd at the destination,
 *   the dimension has lcm(Ns, Nd) tiles, and every tile lies in one segment on both sides. Packed blocks are tiled one by
 *   one. The number and order of tiles is part of the contract: task ids count them. (The tiling of Megatron-LM's
 *   resharding planner, so that ids can be compared.)
 * - Everything else (uneven shards, different dimensions on the two sides, one side replicated) goes by intersecting
 *   global intervals.
 *
 * Invariant: the tiles of one destination shard cover it exactly once. Empty tiles are left out.
 */
import * as Result from "effect/Result"
import {
  equalShapes,
  formatShape,
  fullRegion,
  type Interval,
  intersectIntervals,
  lengthOf,
  type Region,
  type Shape
} from "../base/Region.ts"
import type { ParameterStructure } from "../layout/Roster.ts"
import type { PlanErrorKind } from "./PlanError.ts"

/** One transfer into a destination shard. */
export interface Tile {
  /** Position of the sender in the source's list of shards. */
  readonly source: number
  readonly sourceRegion: Region
  readonly destinationRegion: Region
}

export interface TileFault {
  readonly kind: PlanErrorKind
  readonly detail: string
  readonly remedy: string
}

type Tiles = Result.Result<ReadonlyArray<Tile>, TileFault>

const fault = (kind: PlanErrorKind, detail: string, remedy: string): Result.Result<never, TileFault> =>
  Result.fail({ kind, detail, remedy })

/** How one side holds a parameter: the shards of one tensor-parallel group, in order of position. */
export interface ShardedSide {
  readonly shards: ReadonlyArray<ParameterStructure>
}

/** A piece of a shard: global interval along the partition dimension and where it begins in the shard. */
interface Segment {
  readonly global: Interval
  readonly local: number
}

const greatestCommonDivisor = (a: number, b: number): number => (b === 0 ? a : greatestCommonDivisor(b, a % b))
const leastCommonMultiple = (a: number, b: number): number => (a / greatestCommonDivisor(a, b)) * b

/** Most tiles of one shard, and most steps to find them: far beyond any layout in use, and done in a moment. */
const mostTiles = 2 ** 20
const mostSteps = 2 ** 28

const tooManyTiles = (what: string): TileFault => ({
  kind: "InvalidMetadata",
  detail: `${what}; no layout in use comes near that.`,
  remedy: "Check the stride and the intervals that the ranks state."
})

const strideOf = (shard: ParameterStructure): number => Math.max(1, shard.partitionStride)

/** True where shards of the parameter differ between the ranks of the group. */
export const isSharded = (parameter: ParameterStructure): boolean =>
  parameter.isTp || parameter.partitionOffsets !== null

const sum = (values: ReadonlyArray<number>): number => values.reduce((total, value) => total + value, 0)

/** Checks what a shard says of itself. */
export const checkShard = (shard: ParameterStructure): TileFault | undefined => {
  if (!isSharded(shard)) return undefined
  const local = shard.shape[shard.partitionDim]
  if (local === undefined) {
    return {
      kind: "InvalidMetadata",
      detail: `It is sharded on dimension ${shard.partitionDim} but has shape ${formatShape(shard.shape)}.`,
      remedy: "State a dimension that the parameter has."
    }
  }
  if (strideOf(shard) > mostTiles) return tooManyTiles(`It is cut in ${strideOf(shard)} segments per rank`)
  if (shard.partitionOffsets === null && shard.partitionSizes === null && local % strideOf(shard) !== 0) {
    return {
      kind: "NotDivisible",
      detail: `Its local length ${local} does not divide into ${strideOf(shard)} segments.`,
      remedy: "State the stride that the shard was cut with, or explicit partition offsets."
    }
  }
  if (shard.partitionSizes !== null && sum(shard.partitionSizes) !== local) {
    return {
      kind: "PartitionSizes",
      detail: `Its blocks [${shard.partitionSizes.join(",")}] add up to ${sum(shard.partitionSizes)}, its local length is ${local}.`,
      remedy: "List the local length of every packed block."
    }
  }
  if (shard.partitionOffsets !== null && sum(shard.partitionOffsets.map(lengthOf)) !== local) {
    return {
      kind: "PartitionOffsets",
      detail: `Its intervals hold ${sum(shard.partitionOffsets.map(lengthOf))} indices, its local length is ${local}.`,
      remedy: "State exactly the global intervals that the shard holds."
    }
  }
  return undefined
}

/** The pieces that shard `index` of `size` holds along its partition dimension. */
const segmentsOf = (shard: ParameterStructure, index: number, size: number): ReadonlyArray<Segment> => {
  const pieces: Array<Segment> = []
  let local = 0
  const add = (start: number, length: number): void => {
    if (length > 0) pieces.push({ global: [start, start + length], local })
    local += length
  }
  const length = shard.shape[shard.partitionDim]!
  if (shard.partitionOffsets !== null) {
    for (const interval of shard.partitionOffsets) add(interval[0], lengthOf(interval))
  } else if (shard.partitionSizes !== null) {
    let start = 0
    for (const block of shard.partitionSizes) {
      add(start + index * block, block)
      start += block * size
    }
  } else {
    const segment = length / strideOf(shard)
    for (let k = 0; k < strideOf(shard); k++) add((index + k * size) * segment, segment)
  }
  return pieces
}

/** Whole length of the partition dimension, with the proof that the shards of the group cover it. */
const wholeLength = (side: ShardedSide): Result.Result<number, TileFault> => {
  const [first] = side.shards
  if (first === undefined) return Result.succeed(0)
  const size = side.shards.length
  if (first.partitionOffsets === null) return Result.succeed(first.shape[first.partitionDim]! * size)
  const intervals = side.shards
    .flatMap((shard, index) => segmentsOf(shard, index, size).map((segment) => segment.global))
    .sort((a, b) => a[0] - b[0] || a[1] - b[1])
  let reached = 0
  for (const [start, stop] of intervals) {
    if (start > reached) {
      return fault(
        "PartitionOffsets",
        `No rank of the group holds indices ${reached} to ${start} of dimension ${first.partitionDim}.`,
        "State intervals that cover the whole dimension."
      )
    }
    reached = Math.max(reached, stop)
  }
  return Result.succeed(reached)
}

/** Shape of the whole tensor as one side states it. */
export const wholeShape = (side: ShardedSide): Result.Result<Shape, TileFault> => {
  const [first] = side.shards
  if (first === undefined) return Result.succeed([])
  if (!isSharded(first)) return Result.succeed(first.shape)
  return Result.map(wholeLength(side), (length) =>
    first.shape.map((local, dim) => (dim === first.partitionDim ? length : local))
  )
}

const withInterval = (shape: Shape, dim: number, interval: Interval): Region =>
  fullRegion(shape).map((whole, at) => (at === dim ? interval : whole))

interface Block {
  readonly sourceOffset: number
  readonly destinationOffset: number
  readonly length: number
  readonly sourceStride: number
  readonly destinationStride: number
}

/** Packed blocks of both sides, or the whole dimension as one block. */
const blocksOf = (
  source: ParameterStructure,
  sourceSize: number,
  destination: ParameterStructure,
  destinationSize: number
): Result.Result<ReadonlyArray<Block>, TileFault> => {
  const sourceSizes = isSharded(source) ? source.partitionSizes : null
  const destinationSizes = isSharded(destination) ? destination.partitionSizes : null
  if (sourceSizes === null && destinationSizes === null) {
    return Result.succeed([
      {
        sourceOffset: 0,
        destinationOffset: 0,
        length: destination.shape[destination.partitionDim]! * destinationSize,
        sourceStride: isSharded(source) ? strideOf(source) : 1,
        destinationStride: isSharded(destination) ? strideOf(destination) : 1
      }
    ])
  }
  if (sourceSizes !== null && destinationSizes !== null && sourceSizes.length !== destinationSizes.length) {
    return fault(
      "PartitionSizes",
      `The source lists ${sourceSizes.length} packed blocks, the destination ${destinationSizes.length}.`,
      "List the same blocks on both sides."
    )
  }
  const whole =
    sourceSizes !== null
      ? sourceSizes.map((size) => size * sourceSize)
      : destinationSizes!.map((size) => size * destinationSize)
  const blocks: Array<Block> = []
  let sourceOffset = 0
  let destinationOffset = 0
  for (const [index, length] of whole.entries()) {
    const ofSource = sourceSizes?.[index] ?? length / sourceSize
    const ofDestination = destinationSizes?.[index] ?? length / destinationSize
    if (
      ofSource * sourceSize !== ofDestination * destinationSize ||
      !Number.isInteger(ofSource) ||
      !Number.isInteger(ofDestination)
    ) {
      return fault(
        "PartitionSizes",
        `Packed block ${index} has ${ofSource} x ${sourceSize} rows at the source and ${ofDestination} x ${destinationSize} at the destination.`,
        "State blocks of equal whole length that every rank's share divides."
      )
    }
    blocks.push({ sourceOffset, destinationOffset, length, sourceStride: 1, destinationStride: 1 })
    sourceOffset += ofSource
    destinationOffset += ofDestination
  }
  return Result.succeed(blocks)
}

const microTiles = (
  source: ParameterStructure,
  sourceSize: number,
  destination: ParameterStructure,
  destinationIndex: number,
  destinationSize: number,
  dim: number
): Tiles => {
  const blocks = blocksOf(source, sourceSize, destination, destinationSize)
  if (Result.isFailure(blocks)) return Result.fail(blocks.failure)
  const tiles: Array<Tile & { readonly at: number }> = []
  for (const block of blocks.success) {
    const sourceSegments = sourceSize * block.sourceStride
    const destinationSegments = destinationSize * block.destinationStride
    const count = leastCommonMultiple(sourceSegments, destinationSegments)
    if (block.length % count !== 0) {
      return fault(
        "NotDivisible",
        `Length ${block.length} of dimension ${dim} does not divide into ${count} tiles ` +
          `(${sourceSegments} segments at the source, ${destinationSegments} at the destination).`,
        "Use a stride and group size that divide the length, or state explicit partition offsets."
      )
    }
    const unit = block.length / count
    if (unit === 0) continue
    const perSource = count / sourceSegments
    const perDestination = count / destinationSegments
    if (tiles.length + block.destinationStride * perDestination > mostTiles) {
      return Result.fail(tooManyTiles(`A shard consists of more than ${mostTiles} tiles`))
    }
    for (let k = 0; k < block.destinationStride; k++) {
      for (let step = 0; step < perDestination; step++) {
        const tile = (destinationIndex + k * destinationSize) * perDestination + step
        const segment = Math.floor(tile / perSource)
        const inSource = block.sourceOffset + (Math.floor(segment / sourceSize) * perSource + (tile % perSource)) * unit
        const inDestination = block.destinationOffset + (k * perDestination + step) * unit
        tiles.push({
          at: inDestination,
          source: segment % sourceSize,
          sourceRegion: withInterval(source.shape, dim, [inSource, inSource + unit]),
          destinationRegion: withInterval(destination.shape, dim, [inDestination, inDestination + unit])
        })
      }
    }
  }
  return Result.succeed(tiles.sort((a, b) => a.at - b.at).map(({ at: _at, ...tile }) => tile))
}

interface Piece {
  readonly source: number
  readonly sourceRegion: Array<Interval>
  readonly destinationRegion: Array<Interval>
}

/** Cuts the destination's segments at the source's boundaries and picks one holder for each part. */
const intersectionTiles = (
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

/** Refuses a stride on one side only where a forgotten declaration would look the same. */
const checkStrides = (source: ShardedSide, destination: ShardedSide): TileFault | undefined => {
  const from = source.shards[0]!
  const to = destination.shards[0]!
  const declared = (shard: ParameterStructure): boolean =>
    shard.partitionSizes !== null || shard.partitionOffsets !== null
  if (!from.isTp || !to.isTp || declared(from) || declared(to)) return undefined
  const sizes = [source.shards.length, destination.shards.length]
  const strides = [strideOf(from), strideOf(to)]
  if (sizes[0] === sizes[1] || Math.min(...sizes) === 1 || strides[0] === strides[1] || Math.min(...strides) !== 1) {
    return undefined
  }
  return {
    kind: "AmbiguousStride",
    detail:
      `The source declares stride ${strides[0]} over ${sizes[0]} ranks, the destination stride ${strides[1]} over ${sizes[1]}; ` +
      "a side that forgot its declaration would look the same.",
    remedy: "Declare the stride on both sides, or state partition sizes or offsets on the contiguous side."
  }
}

/** Refuses whole shapes that differ, naming the dimension. */
const checkWholeShapes = (source: ShardedSide, destination: ShardedSide): TileFault | undefined => {
  const from = wholeShape(source)
  if (Result.isFailure(from)) return from.failure
  const to = wholeShape(destination)
  if (Result.isFailure(to)) return to.failure
  if (equalShapes(from.success, to.success)) return undefined
  const dim = from.success.findIndex((length, at) => length !== to.success[at])
  const partitioned = [source, destination].some(
    (side) => isSharded(side.shards[0]!) && side.shards[0]!.partitionDim === dim
  )
  return {
    kind: partitioned ? "SizeConservation" : "ShapeMismatch",
    detail:
      `The source holds ${formatShape(from.success)} in ${source.shards.length} shards of ${formatShape(source.shards[0]!.shape)}, ` +
      `the destination ${formatShape(to.success)} in ${destination.shards.length} of ${formatShape(destination.shards[0]!.shape)}.`,
    remedy: "Both sides must describe the same tensor."
  }
}

/** True where both sides are equal shards, or one is whole, of the same dimension. */
const isTileable = (source: ShardedSide, destination: ShardedSide): boolean => {
  const from = source.shards[0]!
  const to = destination.shards[0]!
  if (from.partitionOffsets !== null || to.partitionOffsets !== null) return false
  return !from.isTp || !to.isTp || from.partitionDim === to.partitionDim
}

/**
 * The transfers that fill shard `destinationIndex`. A side that is not sharded is given as one shard.
 * `preferredSource` is the source position that the destination rank holds itself, or -1.
 */
export const shardTiles = (
  source: ShardedSide,
  destination: ShardedSide,
  destinationIndex: number,
  preferredSource: number
): Tiles => {
  for (const shard of [...source.shards, ...destination.shards]) {
    const wrong = checkShard(shard)
    if (wrong !== undefined) return Result.fail(wrong)
  }
  const wrong = checkStrides(source, destination) ?? checkWholeShapes(source, destination)
  if (wrong !== undefined) return Result.fail(wrong)
  const mine = destination.shards[destinationIndex]!
  const from = source.shards[0]!
  if (mine.shape.includes(0)) return Result.succeed([])
  if (!isSharded(from) && !isSharded(mine)) {
    return Result.succeed([
      { source: 0, sourceRegion: fullRegion(from.shape), destinationRegion: fullRegion(mine.shape) }
    ])
  }
  if (isTileable(source, destination)) {
    const dim = mine.isTp ? mine.partitionDim : from.partitionDim
    const asSharded = (shard: ParameterStructure): ParameterStructure =>
      shard.isTp ? shard : { ...shard, partitionDim: dim, partitionSizes: null }
    return microTiles(
      asSharded(from),
      source.shards.length,
      asSharded(mine),
      destinationIndex,
      destination.shards.length,
      dim
    )
  }
  return intersectionTiles(source, destination, destinationIndex, preferredSource)
}
