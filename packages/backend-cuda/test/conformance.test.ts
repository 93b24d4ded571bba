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
import { descriptors } from "../src/descriptor.ts"
import { clusterOf, kinds, testOptions } from "./cluster.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

describeTensorEngine("cuda", TensorEngine.layer(testOptions), { stated: descriptors[0]!.capabilities })

for (const kind of kinds) {
  describeCopyService(kind, runCopyCase(clusterOf(kind)))
  const stated = descriptors.find(({ name }) => name === kind)!.capabilities
  describeCopyDriver(kind, runCopyDriverCase(clusterOf(kind)), { stated })
}
