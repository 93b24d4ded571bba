// SPDX-License-Identifier: Apache-2.0
/** Codes and scales that we make, from values or from codes of another form, are those of the references, bit by bit. */
import { assert, describe, it } from "@effect/vitest"
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

describe("quantizers", () => {
  for (const [set, check, least] of [
    ["fp8_block", checkFp8Quantizers, 683],
    ["nvfp4", checkNvfp4Quantizers, 399],
    ["mxfp4", checkMxfp4Quantizers, 337],
    ["mxfp8_ct", checkMxfp8Quantizers, 190],
    ["mxfp8", (data: unknown) => checkMxfp8Rules(data as RecordedMxfp8), 134],
    ["recast", checkRecastBytes, 37]
  ] as const) {
    it(`of ${set} make the codes and scales of the references`, { timeout: 120_000 }, () => {
      const verdicts = check(readGolden(set))
      const faults = verdicts.filter(({ fault }) => fault !== undefined)
      assert.deepStrictEqual(faults.slice(0, 5), [], `${faults.length} of ${verdicts.length}`)
      assert.isAtLeast(verdicts.length, least)
    })
  }
})
