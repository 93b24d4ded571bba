// SPDX-License-Identifier: Apache-2.0
/**
 * Replay slots against all replay cases of the conformance kit: over the simulated Level Zero driver with another order of
 * work for each case, and over OpenCL on the processor.
 */
import { describeReplayTransfer } from "@tensorferry/testing/vitest"
import { afterEach, describe } from "vitest"
import { replaySubject } from "./replaySubject.ts"
import { assertClean, lackOf, subjects, titleOf } from "./simulator.ts"

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    if (subject === "level-zero") afterEach(() => assertClean())
    describeReplayTransfer("xpu", replaySubject(subject, "seed=77"))
  })
}
