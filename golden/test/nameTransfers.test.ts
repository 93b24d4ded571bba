// SPDX-License-Identifier: Apache-2.0
/**
 * Models move between the checkpoint's names and those of each system, element by element, there and back. Layouts of many
 * ranks, which take long, are in the full tests.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { RecordedNames } from "../src/nameMappings.ts"
import { checkTransfers } from "../src/nameTransfers.ts"
import { readGolden } from "../src/readGolden.ts"

/** More are tried by the full tests. */
const fewRanks = 4

const read = (file: string): RecordedNames => readGolden(...(file.split("/") as [string, string])) as RecordedNames

describe.each(["names_vllm/names_vllm", "names_vllm/names_sglang", "names_megatron/names_megatron"])("%s", (file) => {
  const recorded = read(file)
  for (const family of recorded.families) {
    const variant = family.variant === undefined ? "" : ` (${family.variant})`
    it.effect(`${family.family}${variant}: every layout of few ranks is filled, and fills the checkpoint again`, () =>
      Effect.gen(function* () {
        const verdicts = yield* checkTransfers({ ...recorded, families: [family] }, (ranks) => ranks <= fewRanks)
        assert.isNotEmpty(verdicts)
        assert.deepStrictEqual(
          verdicts.filter(({ fault }) => fault !== undefined),
          []
        )
      })
    )
  }
})
