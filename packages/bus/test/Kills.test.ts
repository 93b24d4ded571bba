// SPDX-License-Identifier: Apache-2.0
/** A few clients and agents are killed at random moments, and a few engines follow each other. */
import { describe, it } from "@effect/vitest"
import { killAtRandom, restartEngines } from "./kills.ts"
import { hasLmdb, lmdbMissing } from "./support.ts"

describe.skipIf(!hasLmdb)(`kills${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("3 random kills: everyone who waits is told who is gone, at once", () => killAtRandom(3, 29), 180_000)
  it.live("a restart of an engine leaves nothing behind", () => restartEngines(1, 0), 120_000)
})
