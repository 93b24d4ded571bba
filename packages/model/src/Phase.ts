// SPDX-License-Identifier: Apache-2.0
/**
 * The steps of a rank's work on a model.
 */
import * as Schema from "effect/Schema"

/** Steps of a rank's work, in order. */
export const Phase = Schema.Literals(["start", "allocate", "load", "copy", "verify", "write", "finish"])
export type Phase = typeof Phase.Type
