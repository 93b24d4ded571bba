// SPDX-License-Identifier: Apache-2.0
/** Many clients and agents are killed at random moments, and many engines follow each other on the same agents. */
import { describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import { killAtRandom, restartEngines } from "./kills.ts"
import { hasLmdb, lmdbMissing } from "./support.ts"

/** Every kind of kill has its turn three times. */
const kills = isSoak ? 56 : 21

/** Engines, and those before whose end nothing is counted. What one of them leaves is too much. */
const [restarts, warmUp] = isSoak ? [100, 20] : [24, 8]

const seed = Date.now()

describe.skipIf(!hasLmdb)(`kills${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live(
    `${kills} random kills (seed ${seed}): everyone who waits is told who is gone, at once`,
    () => killAtRandom(kills, seed),
    1_200_000
  )
  it.live(`${restarts} restarts of an engine leave nothing behind`, () => restartEngines(restarts, warmUp), 1_200_000)
})
