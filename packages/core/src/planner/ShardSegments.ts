// SPDX-License-Identifier: Apache-2.0
/**
 * What the shards of one tensor-parallel group say of themselves: the pieces that each holds, and the whole that they make.
 *
 * Invariant: a whole shape is stated only where the shards cover it.
 */
import * as Result from "effect/Result"
import { formatShape, type Interval, lengthOf, type Region, type Shape } from "../base/Region.ts"
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

export type Tiles = Result.Result<ReadonlyArray<Tile>, TileFault>

export const fault = (kind: PlanErrorKind, detail: string, remedy: string): Result.Result<never, TileFault> =>
  Result.fail({ kind, detail, remedy })

/** How one side holds a parameter: the shards of one tensor-parallel group, in order of position. */
export interface ShardedSide {
  readonly shards: ReadonlyArray<ParameterStructure>
}

/** A piece of a shard: global interval along the partition dimension and where it begins in the shard. */
export interface Segment {
  readonly global: Interval
  readonly local: number
}

/** Most tiles of one shard, and most steps to find them: far beyond any layout in use, and done in a moment. */
export const mostTiles = 2 ** 20
export const mostSteps = 2 ** 28

export const tooManyTiles = (what: string): TileFault => ({
  kind: "InvalidMetadata",
  detail: `${what}; no layout in use comes near that.`,
  remedy: "Check the stride and the intervals that the ranks state."
})

export const strideOf = (shard: ParameterStructure): number => Math.max(1, shard.partitionStride)

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
export const segmentsOf = (shard: ParameterStructure, index: number, size: number): ReadonlyArray<Segment> => {
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
