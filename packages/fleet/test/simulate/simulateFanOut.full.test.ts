// SPDX-License-Identifier: Apache-2.0
/** The simulator against the bound at 16,384 ranks. */
import { assert, describe, it } from "@effect/vitest"
import { aboveBound } from "./support.ts"

describe("a simulated update", () => {
  it("of 16,384 ranks takes at most 1.2 times the least that links allow", { timeout: 600_000 }, () => {
    for (const { ratio, name } of aboveBound(2048)) assert.isAtMost(ratio, 1.2, name)
  })
})
