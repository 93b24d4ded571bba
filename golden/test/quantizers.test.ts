// SPDX-License-Identifier: Apache-2.0
/** Codes and scales that we make, from values or from codes of another form, are those of the references, bit by bit. */
import { assert, describe, it } from "@effect/vitest"
import type { RecordedCasts } from "../src/dtypeCasts.ts"
import type { RecordedMxfp8 } from "../src/mxfp8.ts"
import {
  checkFp8Quantizers,
  checkMxfp4Quantizers,
  checkMxfp8Quantizers,
  checkMxfp8Rules,
  checkNvfp4Quantizers
} from "../src/quantizers.ts"
import { readGolden } from "../src/readGolden.ts"
import { checkRecastBytes } from "../src/recasts.ts"
import { checkPackedPowers, checkRoundings, checkTiles } from "../src/scaleLayouts.ts"

describe("what quantizers make", () => {
  for (const [what, set, check, least] of [
    ["codes and scales", "fp8_block", checkFp8Quantizers, 683],
    ["codes and scales", "nvfp4", checkNvfp4Quantizers, 399],
    ["codes and scales", "mxfp4", checkMxfp4Quantizers, 337],
    ["codes and scales", "mxfp8_ct", checkMxfp8Quantizers, 190],
    ["codes and scales", "mxfp8", (data: unknown) => checkMxfp8Rules(data as RecordedMxfp8), 134],
    ["recasts and refusals", "recast", checkRecastBytes, 37],
    ["packed scales", "fp8_block", checkPackedPowers, 3],
    ["scales in tiles", "nvfp4", checkTiles, 2],
    ["roundings of float32", "dtype_casts", (data: unknown) => checkRoundings(data as RecordedCasts), 3]
  ] as const) {
    it(`${what} are those of ${set}, bit by bit`, { timeout: 120_000 }, () => {
      const verdicts = check(readGolden(set))
      const faults = verdicts.filter(({ fault }) => fault !== undefined)
      assert.deepStrictEqual(faults.slice(0, 5), [], `${faults.length} of ${verdicts.length}`)
      assert.isAtLeast(verdicts.length, least)
    })
  }
})
