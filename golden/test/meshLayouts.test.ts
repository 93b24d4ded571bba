// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { checkDtensorCase, type DtensorCase } from "../src/meshLayouts.ts"
import { readGolden } from "../src/readGolden.ts"

const { cases } = readGolden("dtensor_layouts") as { readonly cases: ReadonlyArray<DtensorCase> }

describe("layouts recorded from PyTorch DTensor", () => {
  for (const recorded of cases) {
    it(`${recorded.id} ${recorded.tags.join(", ")}`, () => {
      assert.strictEqual(checkDtensorCase(recorded), undefined)
    })
  }

  it("a wrong shard is reported", () => {
    const [first] = cases
    const [rank, ...others] = first!.ranks
    const changed = { ...first!, ranks: [{ ...rank!, global_offset: [1] }, ...others] }
    assert.include(checkDtensorCase(changed), "instead of")
  })
})
