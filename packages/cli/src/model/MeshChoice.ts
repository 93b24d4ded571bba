// SPDX-License-Identifier: Apache-2.0
/** Two meshes between which a tensor moves, as plain data: jobs are read without what plans them. */
import { SourceChoice } from "@tensorferry/core/ir/M2MMap"
import { MeshLayout } from "@tensorferry/core/layout/Placement"
import * as Schema from "effect/Schema"

export const MeshChoice = Schema.Struct({
  from: MeshLayout,
  to: MeshLayout,
  sourceChoice: SourceChoice,
  /** Most bytes of a bucket with more than one chunk; the planner's own number where it is not stated. */
  bucketBytes: Schema.optionalKey(Schema.Int)
})
export type MeshChoice = typeof MeshChoice.Type
