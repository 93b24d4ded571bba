// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { checkEthaCase, type EthaCase } from "../src/meshTransfers.ts"
import { readGolden } from "../src/readGolden.ts"

const { cases } = readGolden("etha_m2m") as { readonly cases: ReadonlyArray<EthaCase> }

describe("maps and transfers recorded from Etha", () => {
  for (const recorded of cases) {
    it(`${recorded.id} ${recorded.title}`, () => {
      assert.strictEqual(checkEthaCase(recorded), undefined)
    })
  }

  it("a route to another rank is reported", () => {
    const recorded = cases.find(({ id }) => id === "v005")!
    const [first, ...others] = recorded.m2m!.routes
    const routes = [{ ...first!, dsts: [{ rank: 3, cell: [0] }] }, ...others]
    assert.include(checkEthaCase({ ...recorded, m2m: { ...recorded.m2m!, routes } }), "route 0 is p2p 0[0] > 2[0]")
  })
})
