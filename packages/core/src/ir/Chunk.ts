// SPDX-License-Identifier: Apache-2.0
/**
 * One box of one tensor that moves in one piece. Data only, and the same on every rank that takes part: a rank is its
 * source, one of its destinations, or both.
 *
 * - `p2p`, `broadcast` and `local` chunks end in the destination tensor. Where `sourcePartialGroups` is not empty, what
 *   moves is the reduction of the box over the group, made by the source rank.
 * - `none` chunks bring a member's part of such a box to the rank that reduces it, in the source's element type; nothing of
 *   them is written to a destination tensor.
 */

import * as Schema from "effect/Schema"
import { DType } from "../base/DType.ts"
import { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { Region, Shape } from "../base/Region.ts"
import { PartialOp } from "../layout/Placement.ts"
import { CellRef, RouteKind } from "./Route.ts"

/** Contributions are reduced in this order, in the source's element type, once. */
export const PartialGroup = Schema.Struct({
  /** Ascending; the reducing rank among them. */
  ranks: Schema.Array(Rank),
  op: PartialOp
})
export type PartialGroup = typeof PartialGroup.Type

/** A box of one tensor that one rank sends and others receive: where it lies in the tensor and in the shards. */
export const Chunk = Schema.Struct({
  kind: RouteKind,
  /** Index into the plan's tensors. */
  tensor: Natural,
  chunkShape: Shape,
  /** Sending rank, and the first cell of its shard in the box. */
  srcIdx: CellRef,
  /** Receiving ranks ascending, with the first cell of their shards; for `none` the reducing rank and the source's cell. */
  dstIdx: Schema.Array(CellRef),
  /** The box in the destination's local tensor, equal for all receiving ranks; null for `none`. */
  sliceTuples: Schema.NullOr(Region),
  /** The box in the source's local tensor. */
  srcSliceTuples: Region,
  sourcePartialGroups: Schema.Array(PartialGroup),
  /** Element type on the wire. */
  transferDtype: DType,
  /** Chunks of equal keys share buckets. Reduce-only chunks have the cell in it, so members pair equal cells. */
  bucketKey: Schema.String
})
export type Chunk = typeof Chunk.Type
