// SPDX-License-Identifier: Apache-2.0
/** A few clients and agents are killed at random moments. Many are in `Kills.full.test.ts`, and engines that follow each other. */
import { describe, it } from "@effect/vitest"
import { killAtRandom } from "./kills.ts"
import { hasLmdb, lmdbMissing } from "./support.ts"

describe.skipIf(!hasLmdb)(`kills${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("a random kill: everyone who waits is told who is gone, at once", () => killAtRandom(1, 29), 180_000)
})
