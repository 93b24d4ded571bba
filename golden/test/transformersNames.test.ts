// SPDX-License-Identifier: Apache-2.0
/** What transformers makes of files and saves again is what our mapping and its way back make, element by element. */
import { assert, describe, it } from "@effect/vitest"
import { readGolden } from "../src/readGolden.ts"
import { checkTransformers, type RecordedTransformers } from "../src/transformersNames.ts"

const recorded = readGolden("names_transformers") as RecordedTransformers

describe("names_transformers", () => {
  it("has loads and saves of 28 families", () => {
    assert.strictEqual(recorded.families.length, 28)
    assert.strictEqual(recorded.families.flatMap(({ cases }) => cases).length, 98)
  })
  for (const family of recorded.families) {
    it(`${family.family}: loads and saves have the recorded elements`, () => {
      const verdicts = checkTransformers({ families: [family] })
      assert.isNotEmpty(verdicts)
      assert.deepStrictEqual(
        verdicts.filter(({ fault }) => fault !== undefined),
        []
      )
    })
  }
})

describe("a recording in which something is another", () => {
  const family = (name: string) => recorded.families.find((one) => one.family === name)!
  const faultOf = (name: string, kind: string, change: (one: (typeof recorded.families)[0]["cases"][0]) => object) => {
    const own = family(name)
    const cases = own.cases.map((one) => (one.id === `${name}/${kind}` ? { ...one, ...change(one) } : one))
    const verdicts = checkTransformers({ families: [{ ...own, cases }] })
    return verdicts.find(({ name: id }) => id === `${name}/${kind}`)!.fault
  }

  it("is noticed in a save, with the tensor and the element", () => {
    const fault = faultOf("mixtral", "save", ({ moves }) => ({
      moves: moves.map((move, at) => (at === 5 ? [move[0], move[1], move[2], move[3] + 1, move[4]] : move))
    }))
    assert.match(fault ?? "", /element 0: \d+, recorded \d+$/)
  })

  it("is noticed in the types that stay wide", () => {
    const own = family("deepseek_v3")
    const [load] = checkTransformers({ families: [{ ...own, float32_of_bfloat16_model: [] }] })
    assert.strictEqual(load!.fault, "model.layers.1.mlp.gate.e_score_correction_bias is float32, recorded otherwise")
  })

  it("is noticed where a tensor is left as it was that we make", () => {
    const fault = faultOf("llama", "load", ({ moves, destinations }) => ({
      moves: moves.filter(([at]) => at !== 0),
      unwritten: [[0, 0, [[(destinations[0]![1][0] ?? 1) * (destinations[0]![1][1] ?? 1), 1]]]]
    }))
    assert.match(fault ?? "", /is made, recorded unwritten/)
  })
})
