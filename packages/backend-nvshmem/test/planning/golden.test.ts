import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { checkScheduleCase, type ScheduleCase } from "../../src/testing/goldenSchedules.ts"

const file = new URL("../../../../golden/nvshmem_schedules/nvshmem_schedules.json.gz", import.meta.url)
const { cases } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as {
  readonly cases: ReadonlyArray<ScheduleCase>
}

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
