// SPDX-License-Identifier: Apache-2.0
/** The words of a ring: what is there, what is about to be overwritten, and steps that contradict them. */
import { assert, describe, it } from "@effect/vitest"
import { RingModel } from "../src/RingModel.ts"

const pushed = (model: RingModel, at: number, rows: number, weight = 1) => {
  model.reserve(at, rows)
  model.commit(at, rows, weight)
}

describe("the model of a ring", () => {
  it("has rows from their commit until others are about to overwrite them", () => {
    const model = new RingModel(8)
    model.reserve(0, 5)
    assert.isFalse(model.has(0))
    assert.strictEqual(model.weights.total, 0n)
    model.commit(0, 5, 3)
    assert.isTrue(model.has(0) && model.has(4) && !model.has(5))
    assert.strictEqual(model.weights.total, 15n)
    model.reserve(5, 6)
    assert.deepStrictEqual([model.first, model.written], [3, 5])
    assert.strictEqual(model.weights.total, 6n)
    model.commit(5, 6, 1)
    assert.deepStrictEqual([model.first, model.written, model.weights.total], [3, 11, 12n])
  })

  it("lets rows that were begun and never committed begin again", () => {
    const model = new RingModel(8)
    pushed(model, 0, 4)
    model.reserve(4, 8)
    assert.deepStrictEqual([model.first, model.written], [4, 4])
    pushed(model, 4, 2)
    assert.isFalse(model.isTorn)
    assert.deepStrictEqual([model.first, model.written], [4, 6])
  })

  for (const [what, contradict] of [
    ["a gap", (model: RingModel) => model.reserve(5, 1)],
    ["rows that are written", (model: RingModel) => model.reserve(3, 1)],
    ["more rows than there are slots", (model: RingModel) => model.reserve(4, 9)],
    ["a commit of rows that nobody reserved", (model: RingModel) => model.commit(4, 1, 1)],
    ["a commit out of turn", (model: RingModel) => [model.reserve(4, 4), model.commit(6, 2, 1)]]
  ] as const) {
    it(`is torn by ${what}`, () => {
      const model = new RingModel(8)
      pushed(model, 0, 4)
      contradict(model)
      assert.isTrue(model.isTorn)
      assert.strictEqual(model.written, 4)
    })
  }

  it("passes over weights of rows that are gone, and takes the largest of a row that comes twice", () => {
    const model = new RingModel(4)
    pushed(model, 0, 4)
    pushed(model, 4, 2)
    model.weigh(BigInt64Array.of(1n, 2n, 3n, 2n, 6n, -1n), Uint32Array.of(100, 9, 5, 4, 100, 100))
    assert.deepStrictEqual(
      [2, 3, 0, 1].map((slot) => model.weights.weightOf(slot)),
      [9, 5, 1, 1]
    )
    // Less than before, and nothing, are weights as well.
    model.weigh(BigInt64Array.of(2n, 2n), Uint32Array.of(0, 3))
    assert.strictEqual(model.weights.weightOf(2), 3)
  })
})
