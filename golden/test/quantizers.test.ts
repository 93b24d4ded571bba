// SPDX-License-Identifier: Apache-2.0
/** The codes and scales that we make are those that the reference implementations made, bit by bit. */
import { assert, describe, it } from "@effect/vitest"
import { checkFp8Quantizers, checkNvfp4Quantizers } from "../src/quantizers.ts"
import { readGolden } from "../src/readGolden.ts"

describe("quantizers", () => {
  for (const [set, check, least] of [
    ["fp8_block", checkFp8Quantizers, 683],
    ["nvfp4", checkNvfp4Quantizers, 399]
  ] as const) {
    it(`of ${set} make the codes and scales of the references`, { timeout: 120_000 }, () => {
      const verdicts = check(readGolden(set))
      const faults = verdicts.filter(({ fault }) => fault !== undefined)
      assert.deepStrictEqual(faults.slice(0, 5), [], `${faults.length} of ${verdicts.length}`)
      assert.isAtLeast(verdicts.length, least)
    })
  }
})
