// SPDX-License-Identifier: Apache-2.0
/** Many clients and agents are killed at random moments, and many engines follow each other on the same agents. */
import { describe, it } from "@effect/vitest"
import { killAtRandom, restartEngines } from "./kills.ts"
import { hasLmdb, lmdbMissing } from "./support.ts"

describe.skipIf(!hasLmdb)(`kills${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live(
    "56 random kills: everyone who waits is told who is gone, at once",
    () => killAtRandom(56, Date.now()),
    1_200_000
  )
  it.live("100 restarts of an engine leave nothing behind", () => restartEngines(100, 20), 1_200_000)
})
