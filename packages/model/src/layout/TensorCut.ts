// SPDX-License-Identifier: Apache-2.0
/**
 * How a rule cuts one dimension over the ranks of a group: which global rows each rank holds, in local order.
 *
 * Invariant: every global row is held by some position of the group. Padding rows come last and belong to no global row.
 */

import { chunkInterval, type Interval, lengthOf } from "@tensorferry/core/base/Region"
import type { ShardingRule } from "@tensorferry/core/layout/ShardingRules"
import * as Result from "effect/Result"
import { type LayoutError, layoutError } from "./LayoutError.ts"

/** What one rank holds of a dimension. */
export interface Cut {
  /** Global intervals in local order, none of them empty. */
  readonly intervals: ReadonlyArray<Interval>
  /** Local rows, padding included. */
  readonly length: number
}

/** How a dimension is cut, position by position of the group that cuts it. */
export interface StatedCut {
  readonly cuts: ReadonlyArray<Cut>
  /** Local lengths of the blocks, each cut evenly over the group; undefined where shards differ. */
  readonly sizes: ReadonlyArray<number> | undefined
}

/** Rows that hold data. */
export const heldRows = (cut: Cut): number => cut.intervals.reduce((sum, interval) => sum + lengthOf(interval), 0)

const cutOf = (intervals: ReadonlyArray<Interval>): Cut => {
  const held = intervals.filter((interval) => lengthOf(interval) > 0)
  return { intervals: held, length: held.reduce((sum, interval) => sum + lengthOf(interval), 0) }
}

const misfit = (name: string, detail: string, remedy: string): Result.Result<never, LayoutError> =>
  layoutError("InvalidRule", [name], detail, remedy)

/** Lengths of the blocks packed along a dimension. */
export const blockLengths = (
  name: string,
  length: number,
  blocks: ReadonlyArray<number>
): Result.Result<ReadonlyArray<number>, LayoutError> => {
  const total = blocks.reduce((sum, block) => sum + block, 0)
  if (length % total === 0) return Result.succeed(blocks.map((block) => (length / total) * block))
  return misfit(
    name,
    `Length ${length} does not divide into blocks of relative lengths [${blocks.join(",")}].`,
    "State the blocks that the tensor packs."
  )
}

/** What the rank at `position` of `degree` holds of a dimension of `length` rows. */
export const cutDimension = (
  name: string,
  length: number,
  rule: ShardingRule | StatedCut,
  position: number,
  degree: number
): Result.Result<Cut, LayoutError> => {
  if ("cuts" in rule) {
    const stated = rule.cuts[position]
    return stated !== undefined && rule.cuts.length === degree
      ? Result.succeed(stated)
      : misfit(name, `Its cut is stated for ${rule.cuts.length} ranks, not for ${degree}.`, "State it for every rank.")
  }
  const { heads, blocks, padToMultiple } = rule
  if (heads !== undefined && length % heads.count !== 0) {
    return misfit(
      name,
      `Length ${length} does not divide into ${heads.count} heads.`,
      "State the heads that the dimension holds."
    )
  }
  if (heads !== undefined && (degree <= heads.count || heads.whenFewer === "replicate")) {
    const rows = length / heads.count
    const [from, to] =
      degree <= heads.count
        ? chunkInterval(heads.count, degree, position)
        : [Math.floor((position * heads.count) / degree), Math.floor((position * heads.count) / degree) + 1]
    return Result.succeed(cutOf([[from * rows, to * rows]]))
  }
  if (blocks !== undefined) {
    return Result.map(blockLengths(name, length, blocks), (lengths) => {
      let start = 0
      const intervals = lengths.map((block): Interval => {
        const [from, to] = chunkInterval(block, degree, position)
        start += block
        return [start - block + from, start - block + to]
      })
      return cutOf(intervals)
    })
  }
  if (padToMultiple !== undefined) {
    const perRank = Math.ceil(length / (padToMultiple * degree)) * padToMultiple
    const held = cutOf([[Math.min(length, position * perRank), Math.min(length, (position + 1) * perRank)]])
    return Result.succeed({ intervals: held.intervals, length: perRank })
  }
  return Result.succeed(cutOf([chunkInterval(length, degree, position)]))
}
