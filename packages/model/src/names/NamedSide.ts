// SPDX-License-Identifier: Apache-2.0
/** A side of a job whose tensors have the names of a system, as plain data. */

import * as Schema from "effect/Schema"
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
