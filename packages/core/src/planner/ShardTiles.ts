// SPDX-License-Identifier: Apache-2.0
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
import { equalShapes, formatShape, fullRegion, type Interval, type Region, type Shape } from "../base/Region.ts"
import type { ParameterStructure } from "../layout/Roster.ts"
import { intersectionTiles } from "./IntersectionTiles.ts"
import {
  checkShard,
  fault,
  isSharded,
  mostTiles,
  type ShardedSide,
  strideOf,
  type Tile,
  type TileFault,
  type Tiles,
  tooManyTiles,
  wholeShape
} from "./ShardSegments.ts"

const greatestCommonDivisor = (a: number, b: number): number => (b === 0 ? a : greatestCommonDivisor(b, a % b))
const leastCommonMultiple = (a: number, b: number): number => (a / greatestCommonDivisor(a, b)) * b

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
