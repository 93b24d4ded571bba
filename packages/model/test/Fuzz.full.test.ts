// SPDX-License-Identifier: Apache-2.0
/** Readers of checkpoints on damaged files: each ends with a value that keeps its rules or with its own typed error. */

import { describeFuzz } from "@tensorferry/testing/vitest"
import { targets } from "./fixtures/fuzzTargets.ts"

const script = new URL("./fixtures/fuzzTargets.ts", import.meta.url)
const longer = ["distributed metadata", "config.json"]

describeFuzz(
  script,
  Object.keys(targets).filter((target) => !longer.includes(target)),
  { seconds: 5, megabytes: 400 }
)
describeFuzz(script, longer, { seconds: 60, megabytes: 400 })
