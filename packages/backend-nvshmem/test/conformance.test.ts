// SPDX-License-Identifier: Apache-2.0
/**
 * The driver against the whole conformance kit, over the simulated library, between ranks of one process, on both paths.
 * The engine is that of @tensorferry/gpu, which backend-cuda proves.
 */
import { runCopyCase, runCopyDriverCase } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import { afterEach, beforeEach } from "vitest"
import { descriptors } from "../src/descriptor.ts"
import { assertClean, clusterOf, paths, resetSimulator } from "./cluster.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

for (const path of paths) {
  describeCopyService(path, runCopyCase(clusterOf({ path })))
  describeCopyDriver(path, runCopyDriverCase(clusterOf({ path })), {
    stated: descriptors[0]!.capabilities
  })
}
