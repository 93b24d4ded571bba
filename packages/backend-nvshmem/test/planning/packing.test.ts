// SPDX-License-Identifier: Apache-2.0
/**
 * Laws of cutting and packing: every byte is in exactly one place, and nothing is longer than it may be.
 */
import { assert, describe, it } from "@effect/vitest"
import { elementCount, regionShape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { segmentByteTasks, segmentTensor } from "../../src/planning/TaskSegmenter.ts"
import { packWorkload } from "../../src/planning/WorkloadPacker.ts"

const between = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

describe("segments", () => {
  it.prop(
    "of a tensor cover every element once and fit",
    { shape: Schema.Array(between(0, 9)).check(Schema.isMaxLength(4)), limit: between(8, 300) },
    ({ shape, limit }) => {
      const segments = segmentTensor(shape, "float32", limit)
      const seen = new Set<string>()
      const visit = (region: ReadonlyArray<readonly [number, number]>, before: string): void => {
        const [first, ...rest] = region
        if (first === undefined) {
          assert.isFalse(seen.has(before), before)
          seen.add(before)
          return
        }
        for (let index = first[0]; index < first[1]; index++) visit(rest, `${before} ${index}`)
      }
      for (const { region, byteLength } of segments) {
        assert.isAtMost(byteLength, limit)
        assert.strictEqual(byteLength, 4 * elementCount(regionShape(region)))
        visit(region, "")
      }
      assert.strictEqual(seen.size, elementCount(shape))
    },
    { arbitrary: { runs: 200, seed: "segments" } }
  )

  it("a task without numbers for its segments is refused", () => {
    const refused = segmentByteTasks([{ taskId: 1_000_000, position: 0, byteLength: 11 }], 10)
    assert.isTrue(Result.isFailure(refused))
    const small = segmentByteTasks([{ taskId: 1_000_000, position: 0, byteLength: 10 }], 10)
    assert.isTrue(Result.isSuccess(small))
  })
})

describe("batches", () => {
  it.prop(
    "hold every item once, aligned, apart from each other and within the limits",
    {
      sizes: Schema.Array(between(1, 400)).check(Schema.isMaxLength(60)),
      batchBytes: between(400, 900),
      batchItems: between(1, 9)
    },
    ({ sizes, batchBytes, batchItems }) => {
      const items = sizes.map((byteLength, name) => ({ byteLength, name }))
      const batches = packWorkload(items, { batchBytes, batchItems, alignment: 16 })
      const names: Array<number> = []
      for (const batch of batches) {
        assert.isAtMost(batch.byteLength, batchBytes)
        assert.isAtMost(batch.items.length, batchItems)
        let end = 0
        for (const { item, offset } of batch.items) {
          assert.strictEqual(offset % 16, 0)
          assert.isAtLeast(offset, end)
          end = offset + item.byteLength
          names.push(item.name)
        }
        assert.strictEqual(batch.byteLength, end)
      }
      assert.deepStrictEqual(
        names.toSorted((a, b) => a - b),
        items.map(({ name }) => name)
      )
    },
    { arbitrary: { runs: 300, seed: "batches" } }
  )
})
