// SPDX-License-Identifier: Apache-2.0
/**
 * Readers of commands and payloads on damaged inputs: each ends with a value or with its own typed error, soon and in
 * little memory.
 */

import { describeFuzz } from "@tensorferry/testing/vitest"

const script = new URL("./fixtures/fuzzTargets.ts", import.meta.url)

describeFuzz(script, ["command", "payload", "talk"], { seconds: 1, megabytes: 300 })
