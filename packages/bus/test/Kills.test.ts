// SPDX-License-Identifier: Apache-2.0
/** A few clients and agents are killed at random moments, and a few engines follow each other. */
import { describe, it } from "@effect/vitest"
import { killAtRandom, restartEngines } from "./kills.ts"
import { hasLmdb, lmdbMissing } from "./support.ts"

describe.skipIf(!hasLmdb)(`kills${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("7 random kills: everyone who waits is told who is gone, at once", () => killAtRandom(7, 29), 180_000)
  it.live("3 restarts of an engine leave nothing behind", () => restartEngines(3, 0), 120_000)
})
