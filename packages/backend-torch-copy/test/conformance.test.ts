// SPDX-License-Identifier: Apache-2.0
/**
 * This backend against the whole conformance kit: its engine in this process, its copy service and driver between real
 * processes, over every path of its ladder.
 */

import { describeTensorEngine } from "@tensorferry/testing/vitest"
import { afterAll } from "vitest"
import * as TensorEngine from "../src/TensorEngine.ts"
import { describeProcesses } from "./conformanceProcesses.ts"
import { killJobs } from "./fixtures/conformance-job.ts"

afterAll(killJobs)

describeTensorEngine("torch-copy", TensorEngine.layer())

describeProcesses("torch-copy", [])
