// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank says about one of its parameters: its local shape, and how that shard lies in the whole tensor.
 *
 * A shard is described in one of four ways:
 * - replicated: `isTp` false and no `partitionOffsets`; the local shape is the whole shape.
 * - strided: `isTp`, `partitionStride` s over a group of w ranks. The dimension is cut in `s * w` equal segments; the
 *   group's member r holds segments r, r + w, r + 2w, ...
 * - packed: `isTp` and `partitionSizes`: the local lengths of blocks that are each cut over the group on their own.
 * - explicit: `partitionOffsets`, the global intervals that the shard holds along `partitionDim`, in local order. The only
 *   form in which shards may be uneven or empty.
 */

import * as Schema from "effect/Schema"
import { DType } from "../base/DType.ts"
import { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { Interval, Shape } from "../base/Region.ts"

const Ranks = Schema.NullOr(Schema.Array(Rank))

/** What one rank holds of one parameter: its type and shapes, the region, and its place in the parallel groups. */
export const ParameterMetadata = Schema.Struct({
  /** Name in the module of the rank that owns it. */
  name: Schema.String,
  /** Local shape. */
  shape: Shape,
  dtype: DType,
  isTp: Schema.Boolean,
  partitionDim: Natural,
  /** 0 counts as 1. */
  partitionStride: Natural,
  /** Local lengths of packed blocks along `partitionDim`. */
  partitionSizes: Schema.NullOr(Schema.Array(Natural)),
  /** Global intervals along `partitionDim`, in local order. */
  partitionOffsets: Schema.NullOr(Schema.Array(Interval)),
  isEp: Schema.Boolean,
  numExperts: Schema.NullOr(Natural),
  ownerRank: Rank,
  /** Members in order of their position; for expert parameters the expert tensor-parallel group. */
  tensorParallelGroupRanks: Ranks,
  expertParallelGroupRanks: Ranks,
  dataParallelGroupRanks: Ranks,
  pipelineParallelGroupRanks: Ranks,
  /** Name by which all ranks know the tensor: global layer and expert numbers. */
  resolvedName: Schema.String,
  globalExpertIndex: Schema.NullOr(Natural),
  /** True for buffers that travel with the parameters. */
  isPersistentBuffer: Schema.Boolean,
  /** Resolved name of the tensor whose storage this one shares on this rank, as tied embeddings do. */
  aliasOf: Schema.NullOr(Schema.String)
})
export type ParameterMetadata = typeof ParameterMetadata.Type

/** What must be stated; the rest defaults to a replicated parameter outside all groups. */
export type ParameterMetadataInput = Pick<ParameterMetadata, "name" | "shape" | "dtype" | "ownerRank"> &
  Partial<ParameterMetadata>

/** Completes what is stated; the rest describes a replicated parameter. */
export const parameterMetadata = (input: ParameterMetadataInput): ParameterMetadata => ({
  isTp: false,
  partitionDim: 0,
  partitionStride: 1,
  partitionSizes: null,
  partitionOffsets: null,
  isEp: false,
  numExperts: null,
  tensorParallelGroupRanks: null,
  expertParallelGroupRanks: null,
  dataParallelGroupRanks: [input.ownerRank],
  pipelineParallelGroupRanks: null,
  resolvedName: input.name,
  globalExpertIndex: null,
  isPersistentBuffer: false,
  aliasOf: null,
  ...input
})
