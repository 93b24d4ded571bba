// SPDX-License-Identifier: Apache-2.0
/**
 * Rings by copies of this backend's engine, which has no kernels, against the cases of the kit: over the simulated Level Zero
 * driver with another order of work for each case, and over OpenCL on the processor.
 */
import { RingSubject } from "@tensorferry/testing/ring/RingSubject"
import { deviceRingSubject } from "@tensorferry/testing/ring/ringSubjects"
import { describeReplayRing } from "@tensorferry/testing/vitest"
import * as Layer from "effect/Layer"
import { afterEach, beforeEach, describe } from "vitest"
import * as TensorEngine from "../src/TensorEngine.ts"
import { assertClean, lackOf, optionsOf, resetSimulator, subjects, titleOf } from "./simulator.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

const slow = "thousands of copies each; the same draws are tried in smaller batches"

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    describeReplayRing(
      "xpu",
      Layer.provide(Layer.effect(RingSubject, deviceRingSubject), TensorEngine.layer(optionsOf(subject))),
      { quirks: { "draws large batches, in which numbers beyond the range are passed over often": slow } }
    )
  })
}
