// SPDX-License-Identifier: Apache-2.0
/**
 * Readers of commands and payloads on damaged inputs: each ends with a value or with its own typed error, soon and in
 * little memory. Seconds by default; a minute per reader, from a seed of its own, with TENSORFERRY_TESTS=soak.
 * TENSORFERRY_FUZZ_SEED=N runs the one case N again.
 */

import { assert, describe, it } from "@effect/vitest"
import { fuzz } from "@tensorferry/testing/fuzz"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"

const replayed = process.env.TENSORFERRY_FUZZ_SEED
const millis = replayed !== undefined ? 0 : isSoak ? 60_000 : 1_000
const seed = replayed !== undefined ? Number(replayed) : isSoak ? Date.now() % 2 ** 40 : 1

describe("fuzzing", () => {
  for (const target of ["command", "payload"]) {
    it.live(
      target,
      () =>
        Effect.gen(function* () {
          const script = new URL("./fixtures/fuzzTargets.ts", import.meta.url)
          const report = yield* Effect.mapError(
            fuzz({ script, target, seed, millis }),
            (detail) => `${detail}\nRun it again with TENSORFERRY_FUZZ_SEED.`
          )
          assert.isBelow(report.peakMegabytes, 300)
          if (replayed !== undefined) return
          assert.isAbove(report.accepted, 0)
          assert.isBelow(report.accepted, report.cases)
        }),
      180_000
    )
  }
})
