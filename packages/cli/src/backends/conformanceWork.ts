// SPDX-License-Identifier: Apache-2.0
/** What a process that tests a backend gets, and what it reports. Plain data. */
import { RankOutcome } from "@tensorferry/testing"
import * as Schema from "effect/Schema"

/** Where a rank's process finds a backend. */
export const backendPlace = {
  backend: Schema.String,
  backendPackages: Schema.Array(Schema.String),
  /** Where backend packages are looked up: a file URL of the caller. */
  packagesFrom: Schema.String,
  /** As the user wrote them. */
  options: Schema.Json
}

export const ConformanceWork = Schema.toCodecJson(
  Schema.Struct({
    ...backendPlace,
    /** "copy": the cases of `CopyService` and `CopyDriver` for the group's size. */
    kind: Schema.Literals(["tensorEngine", "copy", "replayTransfer"]),
    /** File URL of a module whose `replayTesting` takes the place of the descriptor's; null for none. */
    hooks: Schema.NullOr(Schema.String),
    cases: Schema.Array(Schema.String),
    caseMillis: Schema.Int
  })
)
export type ConformanceWork = typeof ConformanceWork.Type

export const ConformanceNews = Schema.toCodecJson(Schema.Struct({ name: Schema.String, outcome: RankOutcome }))
export type ConformanceNews = typeof ConformanceNews.Type
