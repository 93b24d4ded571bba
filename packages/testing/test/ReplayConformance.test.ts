// SPDX-License-Identifier: Apache-2.0
/**
 * The replay cases themselves: an honest device passes all that apply to it, and each lie is caught by the case that is
 * named for it.
 */

import { assert, describe, it } from "@effect/vitest"
import { ReplayTransferBusyPoll } from "@tensorferry/core/replay/ReplayTransferLayer"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { delayedReplaySubject, replayConformanceCases, runReplayCase } from "../src/ReplayConformance.ts"
import { describeReplayTransfer } from "../src/vitest.ts"
import { replayLies } from "./replayLies.ts"

const seeds = isSoak ? Array.from({ length: 20 }, (_, seed) => seed) : [7]

for (const seed of seeds) {
  for (const mode of ["asynchronous", "synchronous", "deferred"] as const) {
    describeReplayTransfer(`delayed device, ${mode}, seed ${seed}`, delayedReplaySubject({ mode, seed }))
  }
}
// Short and long: copies end while the wait asks, and after it has begun to sleep.
for (const busyPoll of [Duration.millis(1), Duration.minutes(1)]) {
  describeReplayTransfer(
    `delayed device, waits that poll for ${Duration.format(busyPoll)}`,
    Layer.provideMerge(
      delayedReplaySubject({ mode: "asynchronous", seed: 9 }),
      Layer.succeed(ReplayTransferBusyPoll, busyPoll)
    )
  )
}
describeReplayTransfer(
  "delayed device of another family",
  delayedReplaySubject({ mode: "asynchronous", seed: 8, device: { family: "pretend", index: 0 } })
)

describe("lies of a replay device", () => {
  for (const { name, caughtBy, mode = "asynchronous", tell } of replayLies) {
    it.live(`${name}: caught by "${caughtBy}"`, () =>
      Effect.gen(function* () {
        const oneCase = replayConformanceCases.find((known) => known.name === caughtBy)
        if (oneCase === undefined) return assert.fail(`There is no case "${caughtBy}".`)
        const lying = delayedReplaySubject({ mode, seed: 3 }, tell())
        const result = yield* Effect.provide(runReplayCase(oneCase, "30 seconds"), lying)
        assert.strictEqual(result.status, "failed", result.detail)
        assert.notInclude(result.detail, "did not end within its deadline")
      })
    )
  }
})
