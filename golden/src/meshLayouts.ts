// SPDX-License-Identifier: Apache-2.0
/**
 * Mesh layouts as recorded sets write them, and the check of the set of local shapes and offsets.
 */

import { deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import {
  type MeshLayout,
  meshLayout,
  type PartialOp,
  type Placement,
  partial,
  replicate,
  shard,
  stridedShard
} from "@tensorferry/core/layout/Placement"
import { localShard } from "@tensorferry/core/layout/ShardIntervals"
import * as Result from "effect/Result"

export type RecordedPlacement =
  | { readonly kind: "replicate" }
  | { readonly kind: "shard"; readonly dim: number }
  | { readonly kind: "strided_shard"; readonly dim: number; readonly split_factor: number }
  | { readonly kind: "partial"; readonly reduce_op: PartialOp }

export interface RecordedLayout {
  readonly mesh_shape: ReadonlyArray<number>
  readonly mesh_ranks: ReadonlyArray<number>
  readonly placements: ReadonlyArray<RecordedPlacement>
}

const placementOf = (recorded: RecordedPlacement): Placement => {
  switch (recorded.kind) {
    case "replicate":
      return replicate
    case "shard":
      return shard(recorded.dim)
    case "strided_shard":
      return stridedShard(recorded.dim, recorded.split_factor)
    case "partial":
      return partial(recorded.reduce_op)
  }
}

/** Recorded layouts are sound; one that is not is a fault of the reader. */
export const layoutOf = (recorded: RecordedLayout): MeshLayout =>
  Result.getOrThrow(
    Result.flatMap(deviceMesh({ shape: recorded.mesh_shape, ranks: recorded.mesh_ranks }), (mesh) =>
      meshLayout(mesh, recorded.placements.map(placementOf))
    )
  )

export interface DtensorCase extends RecordedLayout {
  readonly id: string
  readonly tags: ReadonlyArray<string>
  readonly tensor_shape: ReadonlyArray<number>
  readonly ranks: ReadonlyArray<{
    readonly rank: number
    readonly local_shape: ReadonlyArray<number>
    readonly global_offset: ReadonlyArray<number>
    readonly dim_intervals: ReadonlyArray<ReadonlyArray<readonly [number, number]>>
  }>
}

/** Undefined where every rank's shard is as recorded, else the first that is not. */
export const checkDtensorCase = (recorded: DtensorCase): string | undefined => {
  const layout = layoutOf(recorded)
  for (const wanted of recorded.ranks) {
    const held = localShard(layout, recorded.tensor_shape, wanted.rank)
    if (Result.isFailure(held)) return held.failure.message
    const ours = JSON.stringify([held.success.shape, held.success.offset, held.success.intervals])
    const theirs = JSON.stringify([wanted.local_shape, wanted.global_offset, wanted.dim_intervals])
    if (ours !== theirs) return `rank ${wanted.rank}: ${ours} instead of ${theirs}`
  }
  return undefined
}
