// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks state about themselves before they choose paths, as it travels.
 *
 * Invariants: what a rank says is decoded here before anything uses it. Whose statement it is follows from who sent it.
 */
import type * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { DecodeOutcome } from "../driver/DriverAgreement.ts"
import { decodeOutcome, type Outcome } from "../driver/Outcome.ts"
import { type RankStatement, wireStates } from "./choosePath.ts"

/** A statement without the rank that makes it: equal ranks send equal bytes. */
export type SentStatement = Omit<RankStatement, "rank">

const Word = Schema.String.check(Schema.isMaxLength(256))

/** Most characters of why a wire is lacking. */
export const longestWhy = 400

const Statement = Schema.Struct({
  host: Word,
  space: Word,
  network: Word,
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
}) satisfies Schema.Codec<SentStatement, unknown>

const decodeOne = decodeOutcome(Statement)

/** Reads how the statements of ranks ended. Of thousands of ranks most say the same, which is decoded once. */
export const makeStatementReader = (): DecodeOutcome<SentStatement> => {
  const known = new Map<string, Result.Result<Outcome<SentStatement>, string>>()
  return (bytes) => {
    const text = Buffer.from(bytes).toString("latin1")
    const read = known.get(text) ?? decodeOne(bytes)
    known.set(text, read)
    return read
  }
}
