// SPDX-License-Identifier: Apache-2.0
/** Digests under names: they add up, and tensors that change places show. */
import { assert, describe, it } from "@effect/vitest"
import { formatElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import * as Schema from "effect/Schema"
import { digestUnderName, parseElementDigest } from "../../src/shards/ShareDigests.ts"

const upTo = (maximum: bigint) => Schema.BigInt.check(Schema.isBetweenBigInt({ minimum: 0n, maximum }))
const Digest = upTo((1n << 128n) - 1n)
/** Factors of names are odd, so what they differ by is even: differences of the highest bits alone are lost in it. */
const Near = upTo(1n << 40n)

describe("digests under the names of tensors", () => {
  it.prop("add up as the digests do", [Digest, Digest, Schema.String], ([a, b, name]) => {
    const together = digestUnderName(name, sumOfDigests([a, b]))
    assert.strictEqual(together, sumOfDigests([digestUnderName(name, a), digestUnderName(name, b)]))
  })

  it.prop("differ where the digests do, and where the names do", [Near, Near], ([a, b]) => {
    if (a === b) return
    assert.notStrictEqual(digestUnderName("a", a), digestUnderName("a", b))
    const [as, swapped] = [
      [a, b],
      [b, a]
    ].map(([one, two]) => sumOfDigests([digestUnderName("a", one!), digestUnderName("b", two!)]))
    assert.notStrictEqual(as, swapped)
  })

  it.prop("are read back from text", [Digest], ([digest]) => {
    assert.strictEqual(parseElementDigest(formatElementDigest(digest)), digest)
  })

  it("are no other text", () => {
    for (const text of ["", "0", "x".repeat(32), "0".repeat(31), "0".repeat(33), `0x${"0".repeat(30)}`])
      assert.isUndefined(parseElementDigest(text))
  })
})
