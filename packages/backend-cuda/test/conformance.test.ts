// SPDX-License-Identifier: Apache-2.0
/**
 * This package against the whole conformance kit, over the simulated driver: its engine, and its three drivers between
 * ranks of one process.
 */

import * as TensorEngine from "@tensorferry/gpu/TensorEngine"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { runCopyCase, runCopyDriverCase } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService, describeTensorEngine } from "@tensorferry/testing/vitest"
import { afterEach, beforeEach } from "vitest"
import { clusterOf, kinds, testOptions } from "./cluster.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

describeTensorEngine("cuda", TensorEngine.layer(testOptions))

for (const kind of kinds) {
  describeCopyService(kind, runCopyCase(clusterOf(kind)), { timeout: 60_000 })
  describeCopyDriver(kind, runCopyDriverCase(clusterOf(kind)), { timeout: 60_000 })
}
