// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { checkRedistributeCase, type RedistributeCase } from "../src/meshTransfers.ts"
import { readGolden } from "../src/readGolden.ts"

const { cases } = readGolden("redistribute_values") as { readonly cases: ReadonlyArray<RedistributeCase> }

describe("element values recorded with PyTorch DTensor", () => {
  for (const recorded of cases) {
    it(`${recorded.id} ${recorded.tags.join(", ")}`, () => {
      assert.strictEqual(checkRedistributeCase(recorded), undefined)
    })
  }

  it("a wrong element is reported", () => {
    const [first] = cases
    const [[rank, held], ...others] = Object.entries(first!.target_locals) as [
      [string, RedistributeCase["target_locals"][string]],
      ...Array<[string, RedistributeCase["target_locals"][string]]>
    ]
    const changed = Object.fromEntries([[rank, { ...held, data: held.data.map((value) => value + 1) }], ...others])
    assert.include(checkRedistributeCase({ ...first!, target_locals: changed }), "element 0 is")
  })
})
