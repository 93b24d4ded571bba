// SPDX-License-Identifier: Apache-2.0
/** Faulty files are refused by kind and name where transformers took many of them, and legal ones are taken. */
import { assert, describe, it } from "@effect/vitest"
import { readGolden } from "../src/readGolden.ts"
import { checkTransformersRefusals, type RecordedFaults } from "../src/transformersRefusals.ts"

const recorded = readGolden("names_transformers") as RecordedFaults

describe("names_transformers, faults", () => {
  for (const fault of [...recorded.negative, ...recorded.plan_negative]) {
    it(`${fault.id}: is judged as recorded`, () => {
      const [verdict] = checkTransformersRefusals({ ...recorded, negative: [], plan_negative: [], ...of(fault) })
      assert.isUndefined(verdict!.fault)
    })
  }
  it("do not agree with a recording of another kind", () => {
    const [fault] = recorded.negative
    const verdicts = checkTransformersRefusals({
      ...recorded,
      negative: [{ ...fault!, kind: "shape_mismatch" }],
      plan_negative: []
    })
    assert.match(verdicts[0]!.fault ?? "", /recorded shape_mismatch/)
  })
})

const of = (fault: RecordedFaults["negative"][0] | RecordedFaults["plan_negative"][0]) =>
  "edit" in fault ? { plan_negative: [fault] } : { negative: [fault] }
