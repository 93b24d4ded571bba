// SPDX-License-Identifier: Apache-2.0
/**
 * This backend against the whole conformance kit: its engine in this process, its copy service and driver between real
 * processes, over every path of its ladder.
 */

import { describeProcesses, describeTensorEngine } from "@tensorferry/testing/vitest"
import { descriptor } from "../src/descriptor.ts"
import * as TensorEngine from "../src/TensorEngine.ts"

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)

describeTensorEngine("torch-copy", TensorEngine.layer(), { stated: descriptor.capabilities })

describeProcesses("torch-copy", script, { forbid: [] }, { timeout: 120_000 })
