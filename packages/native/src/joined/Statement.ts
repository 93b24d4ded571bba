// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks state about themselves before they choose paths, as it travels.
 *
 * Invariant: what a rank says is decoded here before anything uses it.
 */
import * as Schema from "effect/Schema"
import { decodeOutcome } from "../driver/Outcome.ts"
import { type RankStatement, wireStates } from "./choosePath.ts"

const Word = Schema.String.check(Schema.isMaxLength(256))

/** Most characters of why a wire is lacking. */
export const longestWhy = 400

const Statement = Schema.Struct({
  rank: Schema.Int,
  host: Word,
  space: Word,
  direct: Word,
  spansHosts: Schema.Boolean,
  isDirectAllowed: Schema.Boolean,
  wires: Schema.Array(
    Schema.Struct({
      name: Word,
      order: Schema.Finite,
      isStaged: Schema.Boolean,
      hasToken: Schema.Boolean,
      state: Schema.Literals(wireStates),
      why: Schema.String.check(Schema.isMaxLength(longestWhy))
    })
  ).check(Schema.isMaxLength(64))
}) satisfies Schema.Codec<RankStatement, unknown>

/** Reads how a rank's statement ended. */
export const decodeStatement = decodeOutcome(Statement)
