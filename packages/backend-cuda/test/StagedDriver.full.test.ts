// SPDX-License-Identifier: Apache-2.0
/** The copy service over device memory that passes through host buffers: the whole conformance kit on simulated devices. */
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { runCopyCase } from "@tensorferry/testing"
import { describeCopyService } from "@tensorferry/testing/vitest"
import { afterEach, beforeEach } from "vitest"
import { stagedCluster } from "./cluster.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

describeCopyService("staged", runCopyCase(stagedCluster))
