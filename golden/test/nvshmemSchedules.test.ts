// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { checkScheduleCase, type ScheduleCase } from "../src/nvshmemSchedules.ts"
import { readGolden } from "../src/readGolden.ts"

const { cases } = readGolden("nvshmem_schedules") as { readonly cases: ReadonlyArray<ScheduleCase> }

describe("schedules recorded from Megatron-LM", () => {
  for (const recorded of cases) {
    it(`${recorded.id} ${recorded.title}`, () => {
      assert.strictEqual(checkScheduleCase(recorded), undefined)
    })
  }
  it("a changed recording is noticed", () => {
    const recorded = cases.find(({ expected }) => expected.ok && expected.num_iterations > 1)!
    const { expected } = recorded
    if (!expected.ok) return assert.fail("an error case")
    const changed = { ...recorded, expected: { ...expected, num_iterations: expected.num_iterations + 1 } }
    assert.isString(checkScheduleCase(changed))
  })
})
