// SPDX-License-Identifier: Apache-2.0
/** Boxes of parts that must fit a staging buffer. */
import { assert, describe, it } from "@effect/vitest"
import { elementCount, regionShape, rowMajorStrides } from "@tensorferry/core/base/Region"
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"
import { cutShape } from "../src/stagingBoxes.ts"

const between = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

describe("cutShape", () => {
  it("leaves alone what fits", () => {
    assert.deepStrictEqual(cutShape([4, 3], 8, 12), [
      [
        [0, 4],
        [0, 3]
      ]
    ])
    assert.deepStrictEqual(cutShape([], 32, 4), [[]])
    assert.deepStrictEqual(cutShape([3, 0], 8, 1), [])
  })

  it("cuts the outermost dimension that a limit allows", () => {
    assert.deepStrictEqual(cutShape([2, 5], 8, 3), [
      [
        [0, 1],
        [0, 3]
      ],
      [
        [0, 1],
        [3, 5]
      ],
      [
        [1, 2],
        [0, 3]
      ],
      [
        [1, 2],
        [3, 5]
      ]
    ])
  })

  it("keeps whole bytes of narrow types", () => {
    for (const bits of [4, 6]) {
      for (const box of cutShape([40, 3], bits, 5)) {
        assert.strictEqual((elementCount(regionShape(box)) * bits) % 8, 0, JSON.stringify(box))
      }
    }
  })

  it.prop(
    "boxes are runs of row-major order, one after the other, within the limit",
    {
      shape: Arbitrary.array(Arbitrary.schema(between(1, 7)), { maxLength: 4 }),
      width: Arbitrary.schema(between(0, 3)),
      limit: Arbitrary.schema(between(8, 200))
    },
    ({ shape, width, limit }) => {
      const bits = 8 * 2 ** width
      const strides = rowMajorStrides(shape)
      let next = 0
      for (const box of cutShape(shape, bits, limit)) {
        const first = box.reduce((sum, [start], dim) => sum + start * strides[dim]!, 0)
        const last = box.reduce((sum, [, stop], dim) => sum + (stop - 1) * strides[dim]!, 0)
        const elements = elementCount(regionShape(box))
        assert.strictEqual(first, next)
        assert.strictEqual(last, first + elements - 1)
        assert.isAtMost(elements * bits, limit * 8)
        next = last + 1
      }
      assert.strictEqual(next, elementCount(shape))
    },
    { arbitrary: { runs: 300, seed: "pieces" } }
  )
})
