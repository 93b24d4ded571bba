// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { checkMegatronCase, type MegatronCase } from "../src/megatronPlans.ts"
import { readGolden } from "../src/readGolden.ts"

const { cases } = readGolden("megatron_plans") as { readonly cases: ReadonlyArray<MegatronCase> }

describe("plans recorded from Megatron-LM", () => {
  for (const recorded of cases) {
    it(`${recorded.id} ${recorded.title}`, () => {
      assert.strictEqual(checkMegatronCase(recorded), undefined)
    })
  }
})
