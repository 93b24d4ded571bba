// SPDX-License-Identifier: Apache-2.0
/** The conformance kit between processes that may not map each other's memory. */
import { describeProcesses } from "./conformanceProcesses.ts"

describeProcesses("torch-copy without shared maps", ["shared-map"])
