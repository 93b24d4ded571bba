// SPDX-License-Identifier: Apache-2.0
/**
 * The free list against a list of bytes: parts never overlap, and everything comes back.
 */
import { assert, it } from "@effect/vitest"
import { makeRandom } from "@tensorferry/testing/mutate"
import { makeFreeList } from "../src/FreeList.ts"

const alignment = 64
const byteLength = 64 * 100

it("hands out disjoint aligned parts and joins what comes back", () => {
  const random = makeRandom(7)
  for (let round = 0; round < 50; round++) {
    const list = makeFreeList(byteLength, alignment)
    const owners = new Int32Array(byteLength / alignment)
    const parts: Array<{ offset: number; length: number; id: number }> = []
    const give = () => {
      const [part] = parts.splice(random.below(parts.length), 1)
      owners.fill(
        0,
        part!.offset / alignment,
        part!.offset / alignment + Math.max(1, Math.ceil(part!.length / alignment))
      )
      list.give(part!.offset, part!.length)
    }
    for (let step = 1; step <= 200; step++) {
      if (parts.length > 0 && random.below(3) === 0) {
        give()
        continue
      }
      const length = random.below(700)
      const units = Math.max(1, Math.ceil(length / alignment))
      const offset = list.take(length)
      if (offset === undefined) {
        const isFree = (at: number) => owners.subarray(at, at + units).every((owner) => owner === 0)
        for (let at = 0; at + units <= owners.length; at++) assert.isFalse(isFree(at), "a part that fits was refused")
        continue
      }
      assert.strictEqual(offset % alignment, 0)
      const taken = owners.subarray(offset / alignment, offset / alignment + units)
      assert.strictEqual(taken.length, units)
      assert.isTrue(taken.every((owner) => owner === 0))
      taken.fill(step)
      parts.push({ offset, length, id: step })
    }
    assert.strictEqual(list.isEmpty(), parts.length === 0)
    while (parts.length > 0) give()
    assert.isTrue(list.isEmpty())
    assert.strictEqual(list.take(byteLength), 0)
  }
})
