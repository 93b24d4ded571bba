// SPDX-License-Identifier: Apache-2.0
/** Readers of configurations and of PyTorch's pickles on damaged files, for a second each. */
import { describeFuzz } from "@tensorferry/testing/vitest"

describeFuzz(
  new URL("./fixtures/fuzzTargets.ts", import.meta.url),
  ["distributed metadata", "state pickle", "trainer arguments", "params.json", "config.json"],
  { seconds: 1, megabytes: 400 }
)
