// SPDX-License-Identifier: Apache-2.0
/**
 * This backend's engine against the whole conformance kit: over the simulated Level Zero driver, and over OpenCL on the
 * processor.
 */
import { describeTensorEngine } from "@tensorferry/testing/vitest"
import { afterEach, beforeEach, describe } from "vitest"
import { descriptors } from "../src/descriptor.ts"
import * as TensorEngine from "../src/TensorEngine.ts"
import { assertClean, lackOf, optionsOf, resetSimulator, subjects, titleOf } from "./simulator.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    describeTensorEngine("xpu", TensorEngine.layer(optionsOf(subject)), { stated: descriptors[0]!.capabilities })
  })
}
