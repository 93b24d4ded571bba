// SPDX-License-Identifier: Apache-2.0
/** Sum trees against sums made from nothing. */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import { fanOut, levelLengths, SumTree } from "../src/SumTree.ts"

const Slots = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 600 }))
const Changes = Schema.Array(
  Schema.Tuple([
    Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 599 })),
    Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 32 - 1 }))
  ])
).check(Schema.isMaxLength(60))

describe("a sum tree", () => {
  it("has levels down to one root, for every capacity", () => {
    for (const capacity of [1, 2, fanOut, fanOut + 1, fanOut ** 2, fanOut ** 2 + 1, 2 ** 31]) {
      const lengths = levelLengths(capacity)
      assert.strictEqual(lengths.at(-1), 1)
      let below = capacity
      for (const length of lengths) {
        assert.isTrue(length * fanOut >= below && (length - 1) * fanOut < below, `${capacity}: ${lengths}`)
        below = length
      }
    }
  })

  it.prop(
    "sums exactly and finds whose share a number is, after any changes",
    { capacity: Slots, changes: Changes },
    ({ capacity, changes }) => {
      const tree = new SumTree(capacity)
      const weights = new Array<number>(capacity).fill(0)
      for (const [at, weight] of changes) {
        tree.set(at % capacity, weight)
        weights[at % capacity] = weight
      }
      const total = weights.reduce((sum, weight) => sum + BigInt(weight), 0n)
      assert.strictEqual(tree.total, total)
      let before = 0n
      for (const [slot, weight] of weights.entries()) {
        assert.strictEqual(tree.weightOf(slot), weight)
        if (weight === 0) continue
        assert.strictEqual(tree.find(before), slot)
        before += BigInt(weight)
        assert.strictEqual(tree.find(before - 1n), slot)
      }
    },
    { arbitrary: { runs: 150, seed: "sum tree" } }
  )

  it("holds sums beyond 2^53", () => {
    const tree = new SumTree(40)
    for (let slot = 0; slot < 40; slot++) tree.set(slot, 2 ** 32 - 1)
    assert.strictEqual(tree.total, 40n * (2n ** 32n - 1n))
    assert.strictEqual(tree.find(tree.total - 1n), 39)
  })
})
