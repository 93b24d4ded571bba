// SPDX-License-Identifier: Apache-2.0
/** Every parameter of every rank is made of the elements of which the recorded systems made it. */
import { assert, describe, it } from "@effect/vitest"
import { checkNames, type RecordedNames } from "../src/nameMappings.ts"
import { readGolden } from "../src/readGolden.ts"

const read = (file: string): RecordedNames => readGolden(...(file.split("/") as [string, string])) as RecordedNames

describe.each(["names_vllm/names_vllm", "names_vllm/names_sglang", "names_megatron/names_megatron"])("%s", (file) => {
  const recorded = read(file)
  for (const family of recorded.families) {
    const variant = family.variant === undefined ? "" : ` (${family.variant})`
    it(`${family.family}${variant}: ranks have the recorded parameters, element by element`, () => {
      const verdicts = checkNames({ ...recorded, families: [family] })
      assert.isNotEmpty(verdicts)
      assert.deepStrictEqual(
        verdicts.filter(({ fault }) => fault !== undefined),
        []
      )
    })
  }
})

describe("a recorded mapping in which one element is another", () => {
  it("is noticed, with the parameter and the element", () => {
    const recorded = read("names_vllm/names_vllm")
    const [llama] = recorded.families
    const [one] = llama!.cases
    const moves = one!.moves.map((move, at) =>
      at === 1 ? ([move[0], move[1], move[2], 1, [[2, 1, 1]]] as const) : move
    )
    const [verdict] = checkNames({ ...recorded, families: [{ ...llama!, cases: [{ ...one!, moves }] }] })
    assert.match(verdict!.fault ?? "", /qkv_proj\.weight, element 0/)
  })
})
