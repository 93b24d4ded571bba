// SPDX-License-Identifier: Apache-2.0
/** The whole kit for one path of the driver, between ranks of one process. */
import { runCopyCase, runCopyDriverCase } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import { afterEach, beforeEach } from "vitest"
import { descriptors } from "../src/descriptor.ts"
import { assertClean, clusterOf, type paths, resetSimulator } from "./cluster.ts"

/** Defines the tests; each runs over a library of its own seed. */
export const describeConformance = (path: (typeof paths)[number]): void => {
  let seed = 1
  beforeEach(() => resetSimulator(`seed=${seed++}`))
  afterEach(() => assertClean())
  describeCopyService(path, runCopyCase(clusterOf({ path })))
  describeCopyDriver(path, runCopyDriverCase(clusterOf({ path })), {
    stated: descriptors[0]!.capabilities
  })
}
