// SPDX-License-Identifier: Apache-2.0
/** From what all ranks of a trainer hold, the checkpoint comes back as Megatron-Bridge and slime give it, or better. */
import { assert, describe, it } from "@effect/vitest"
import { readGolden } from "../src/readGolden.ts"
import { checkWaysBack, compareBack, type RecordedWaysBack } from "../src/waysBack.ts"

const recorded = readGolden("names_megatron") as RecordedWaysBack

const faultsOf = (part: RecordedWaysBack) => {
  const verdicts = checkWaysBack(part)
  assert.isNotEmpty(verdicts)
  return verdicts.filter(({ fault }) => fault !== undefined)
}

describe("names_megatron, the way back", () => {
  for (const family of recorded.families) {
    const variant = family.variant === undefined ? "" : ` (${family.variant})`
    it(`${family.family}${variant}: every layout gives the checkpoint, without what it never held`, () => {
      assert.deepStrictEqual(faultsOf({ families: [family], to_hf: [] }), [])
    })
  }
  for (const one of recorded.to_hf) {
    it(`${one.id}: shards become the recorded tensors`, () => {
      assert.deepStrictEqual(faultsOf({ families: [], to_hf: [one] }), [])
    })
  }
  it("does not agree with a recording of another conversion", () => {
    const [one] = recorded.to_hf
    const moves = one!.moves.map((move, at) =>
      at === 1 ? ([move[0], move[1], move[2], move[3], [[3, 1, 1]]] as const) : move
    )
    assert.strictEqual(faultsOf({ families: [], to_hf: [{ ...one!, moves }] }).length, 1)
  })
  it("does not agree with a recording in which a prediction layer's embedding comes back", () => {
    const family = recorded.families.find(({ variant }) => variant === "mtp")!
    const exports = family.export_back.slice(0, 1).map((one) => ({ ...one, missing: [] }))
    assert.match(
      faultsOf({ families: [{ ...family, export_back: exports }], to_hf: [] })[0]!.fault!,
      /do not come back/
    )
  })
})

describe("a way back that takes an element from another place", () => {
  const shard = {
    name: "0:a",
    shape: [4],
    strips: [{ source: "a", offset: 0, at: [0], loops: [{ dim: 0, count: 4, step: 1, source: 1 }] }]
  }
  it("is noticed, with the tensor and the element", () => {
    const wrong = {
      name: "a",
      shape: [4],
      strips: [{ source: "0:a", offset: 3, at: [0], loops: [{ dim: 0, count: 4, step: 1, source: -1 }] }]
    }
    assert.strictEqual(compareBack([wrong], [shard], [["a", [4]]]), "a, element 0: 4 comes back")
  })
  it("is not found where each element is its own", () => {
    const right = { name: "a", shape: [4], strips: [{ ...shard.strips[0]!, source: "0:a" }] }
    assert.isUndefined(compareBack([right], [shard], [["a", [4]]]))
  })
})
