// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank does to bring tensors from one mesh layout to another: its local copies and its buckets. Data only; the
 * JSON form is versioned.
 *
 * Order: buckets are listed in one order that all ranks share, contributions to reductions first, so a transport without
 * any buffering may go through the list front to back.
 */

import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../base/Digest.ts"
import { DType } from "../base/DType.ts"
import { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { Shape } from "../base/Region.ts"
import { Bucket } from "./Bucket.ts"
import { Chunk } from "./Chunk.ts"
import { M2MMap } from "./M2MMap.ts"

/** A tensor of a plan between meshes: its whole shape, its types, and what this rank holds of it. */
export const MeshTensor = Schema.Struct({
  name: Schema.String,
  /** Of the whole tensor. */
  shape: Shape,
  sourceDtype: DType,
  targetDtype: DType,
  /** Index into the plan's maps. */
  map: Natural,
  /** Of this rank's shards; null where it is not in the mesh. */
  sourceShape: Schema.NullOr(Shape),
  targetShape: Schema.NullOr(Shape)
})
export type MeshTensor = typeof MeshTensor.Type

/** What one rank does to bring tensors from one device mesh to another. Saved as JSON of this form. */
export const MeshPlan = Schema.Struct({
  format: Schema.Literal("tensorferry.mesh-plan"),
  version: Schema.Literal(1),
  rank: Rank,
  maps: Schema.Array(M2MMap),
  tensors: Schema.Array(MeshTensor),
  /** Most bytes of a bucket with more than one chunk. */
  bucketBytes: Natural,
  /** Chunks that the rank keeps; those with a reduction wait for its contributions. */
  localChunks: Schema.Array(Chunk),
  buckets: Schema.Array(Bucket),
  /** Of everything that ranks must agree on before a byte moves, equal on all of them. */
  sharedDigest: Schema.String
})
export type MeshPlan = typeof MeshPlan.Type

/** Digest of what ranks must agree on: everything from which plans follow, whatever the rank. */
export const sharedDigestOf = (
  bucketBytes: number,
  maps: ReadonlyArray<M2MMap>,
  tensors: ReadonlyArray<Pick<MeshTensor, "name" | "shape" | "sourceDtype" | "targetDtype" | "map">>
): Digest =>
  digestOf({
    version: 1,
    bucketBytes,
    maps,
    tensors: tensors.map(({ name, shape, sourceDtype, targetDtype, map }) => [
      name,
      shape,
      sourceDtype,
      targetDtype,
      map
    ])
  })
