// SPDX-License-Identifier: Apache-2.0
/** The values that we read from quantized weights are those that the reference implementations read, bit by bit. */
import { assert, describe, it } from "@effect/vitest"
import { checkPackedValues } from "../src/packedValues.ts"
import { checkFp8Block, checkMxfp4, checkNvfp4, checkRecasts } from "../src/quantizedValues.ts"
import { readGolden } from "../src/readGolden.ts"

describe("values of quantized weights", () => {
  for (const [set, check, least] of [
    ["fp8_block", checkFp8Block, 500],
    ["nvfp4", checkNvfp4, 120],
    ["mxfp4", checkMxfp4, 40],
    ["recast", checkRecasts, 30],
    ["packed_int", checkPackedValues, 13]
  ] as const) {
    it(`of ${set} are those of the references`, { timeout: 120_000 }, () => {
      const verdicts = check(readGolden(set))
      const faults = verdicts.filter(({ fault }) => fault !== undefined)
      assert.deepStrictEqual(faults.slice(0, 5), [], `${faults.length} of ${verdicts.length}`)
      assert.isAtLeast(verdicts.length, least)
    })
  }
})
