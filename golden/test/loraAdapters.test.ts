// SPDX-License-Identifier: Apache-2.0
/** Adapters change the modules that peft changed, to the same values, and faulty ones are refused by name. */
import { assert, describe, it } from "@effect/vitest"
import { checkAdapter, checkAdapters, type RecordedAdapters } from "../src/loraAdapters.ts"
import { readGolden } from "../src/readGolden.ts"

const recorded = readGolden("names_lora") as RecordedAdapters

describe("names_lora", () => {
  for (const { name, fault } of checkAdapters(recorded)) it(`${name}: as recorded`, () => assert.isUndefined(fault))

  it("has all kinds of cases", () => {
    assert.isAtLeast(recorded.cases.length, 26)
    assert.isAtLeast(recorded.negative.length, 11)
  })
})

describe("a recorded adapter with another rank", () => {
  it("is noticed, with the module", () => {
    const [one] = recorded.cases
    const applied = one!.applied.map((module, at) => (at === 0 ? { ...module, scale: module.scale * 2 } : module))
    assert.match(checkAdapter({ ...one!, applied }) ?? "", /q_proj.*scale 2/)
  })
})

describe("a recorded adapter of which one merged value is another", () => {
  it.each(["attention", "random"])("%s: is noticed, with the element", (id) => {
    const one = recorded.cases.find((other) => other.id === id)!
    const [first, ...rest] = one.merged_tensors
    const values = Buffer.from(first!.data, "base64")
    values.writeFloatLE(Math.fround(values.readFloatLE(4) * (1 + 2 ** -18)), 4)
    const changed = { ...one, merged_tensors: [{ ...first!, data: values.toString("base64") }, ...rest] }
    assert.match(checkAdapter(changed) ?? "", /element 1 is/)
  })
})
