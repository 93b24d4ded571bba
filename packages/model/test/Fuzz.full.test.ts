// SPDX-License-Identifier: Apache-2.0
/** Readers of checkpoints on damaged files: each ends with a value that keeps its rules or with its own typed error. */

import { describeFuzz } from "@tensorferry/testing/vitest"
import { targets } from "./fixtures/fuzzTargets.ts"

describeFuzz(new URL("./fixtures/fuzzTargets.ts", import.meta.url), Object.keys(targets), {
  seconds: 5,
  megabytes: 400
})
