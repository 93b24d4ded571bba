// SPDX-License-Identifier: Apache-2.0
/** The conformance kit between processes that may not map each other's memory. */
import { describeProcesses } from "@tensorferry/testing/vitest"

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)

describeProcesses("torch-copy without shared maps", script, { forbid: ["shared-map"] }, { timeout: 120_000 })
