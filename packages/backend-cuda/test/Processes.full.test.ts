// SPDX-License-Identifier: Apache-2.0
/**
 * The drivers between real processes, which reach each other's simulated devices by exported handles and by messages: the
 * whole conformance kit.
 */

import { isSoak } from "@tensorferry/testing/testLevel"
import { describeProcesses } from "@tensorferry/testing/vitest"
import { kinds } from "./cluster.ts"

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)

/** `cuda` takes the way of `cuda-ipc` here, and that of ranks in one process is the same for all. */
for (const kind of isSoak ? kinds : (["cuda-ipc", "nccl"] as const))
  describeProcesses(`${kind} between processes`, script, { kind }, { timeout: 180_000 })
