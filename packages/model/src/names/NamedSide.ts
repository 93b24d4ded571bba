// SPDX-License-Identifier: Apache-2.0
/** Sides of a job and files whose tensors have the names of a system, as plain data. */

import * as Schema from "effect/Schema"
import { FamilyChoice } from "../Cutting.ts"
import { ParallelConfig } from "../layout/ParallelConfig.ts"
import { Placement } from "../placement/Placement.ts"
import { Mapping } from "./Mapping.ts"

/** One side: its degrees, and how its tensors are named, by a convention or by rules of its own. */
export const NamedSide = Schema.Struct({
  convention: Schema.String,
  config: ParallelConfig,
  /** Takes the place of the convention's rules; its placement still holds. */
  mapping: Schema.optionalKey(Mapping),
  /** Where it has parts of the model, as far as that is not the same for both sides. */
  placement: Schema.optionalKey(Placement)
})
export type NamedSide = typeof NamedSide.Type

/** Both sides, and by which family the checkpoint is read. */
export const NamedChoice = Schema.Struct({
  from: NamedSide,
  to: NamedSide,
  ranks: Schema.Literals(["collocated", "disjoint"]),
  family: FamilyChoice
})
export type NamedChoice = typeof NamedChoice.Type

/**
 * How files name their tensors, and a checkpoint of the same model that says what they mean: the files' own note where
 * none is named.
 */
export const StoredNames = Schema.Struct({
  ...NamedSide.fields,
  like: Schema.optionalKey(Schema.String),
  family: FamilyChoice
})
export type StoredNames = typeof StoredNames.Type
