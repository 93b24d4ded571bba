// SPDX-License-Identifier: Apache-2.0
/**
 * The driver between real processes, whose simulated heaps lie in memory that they share: the whole conformance kit.
 */

import { describeProcesses } from "@tensorferry/testing/vitest"
import { paths } from "./cluster.ts"

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)

for (const path of paths) describeProcesses(`${path} between processes`, script, { path }, { timeout: 180_000 })
