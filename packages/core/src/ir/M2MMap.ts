// SPDX-License-Identifier: Apache-2.0
/**
 * How any tensor laid out on one mesh gets to another: the two layouts, the grid of cells that both cut a tensor into, and
 * the rule that chooses among replicas. Data only, and small: routes follow from it (`MeshPlanner.routesOf`), for one rank
 * or all, so a map of thousands of ranks costs nothing to keep, compare or send.
 */

import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../base/Digest.ts"
import { Natural } from "../base/Numbers.ts"
import { MeshLayout, PartialOp } from "../layout/Placement.ts"

/**
 * Which of the ranks that hold a shard serve whom.
 *
 * - `balanced`: a destination that holds the shard itself copies locally. Of the other deliveries of the shard (one per
 *   cell and destination rank), each of its r holders makes at most ceil(deliveries / r), in consecutive runs. Where the
 *   source is partial, each cell is reduced and shipped by one holder, and each of the r holders ships at most
 *   ceil(cells / r).
 * - `etha`: the destination at position t of its mesh is served by the holder whose free coordinates are those of position
 *   t modulo the size of the source mesh, as the tensor bus Etha does; no balance is promised.
 */
export const SourceChoice = Schema.Literals(["balanced", "etha"])
export type SourceChoice = typeof SourceChoice.Type

/** Which rank of one mesh sends which cell of a tensor to which ranks of another; the same for all tensors of that layout. */
export const M2MMap = Schema.Struct({
  format: Schema.Literal("tensorferry.m2m-map"),
  version: Schema.Literal(1),
  source: MeshLayout,
  target: MeshLayout,
  sourceChoice: SourceChoice,
  /** Dimensions of the tensors that the map is for; null where it serves any number that its placements fit. */
  tensorRank: Schema.NullOr(Natural),
  /** Cells of the whole tensor per dimension; dimensions behind the list are one cell. */
  cellCounts: Schema.Array(Natural),
  /** Cells of one local shard per dimension. */
  sourceNumSlicers: Schema.Array(Natural),
  targetNumSlicers: Schema.Array(Natural),
  /** Mesh dimensions of the source that hold contributions, and how they are reduced. */
  sourcePartialReductions: Schema.Array(Schema.Tuple([Natural, PartialOp]))
})
export type M2MMap = typeof M2MMap.Type

/** The digest of a map: equal on all ranks that planned alike. */
export const m2mDigest = (map: M2MMap): Digest => digestOf(map)
