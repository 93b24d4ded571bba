// SPDX-License-Identifier: Apache-2.0
/**
 * Who sends which cell to whom between two meshes, whatever the tensor's shape. Data only.
 *
 * Each tensor dimension is cut into equal cells, finely enough that every shard of both sides is made of whole ones. A
 * cell is named by its place in a rank's local shard.
 */

import * as Schema from "effect/Schema"
import { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"

/**
 * - `p2p`: to one other rank; `broadcast`: to several; `local`: the rank keeps it.
 * - `none`: the rank only contributes to the reduction of a cell that another member of its group ships.
 */
export const RouteKind = Schema.Literals(["p2p", "broadcast", "local", "none"])
export type RouteKind = typeof RouteKind.Type

/** One cell of one rank's shard. */
export const CellRef = Schema.Struct({
  rank: Rank,
  /** Index of the cell in the rank's local shard, per dimension. */
  cell: Schema.Array(Natural)
})
export type CellRef = typeof CellRef.Type

/** How a bucket gets from its sender to its receivers. */
export const Route = Schema.Struct({
  kind: RouteKind,
  src: CellRef,
  /** Ranks ascending; empty for `none`. */
  dsts: Schema.Array(CellRef)
})
export type Route = typeof Route.Type
