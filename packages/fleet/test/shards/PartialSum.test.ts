// SPDX-License-Identifier: Apache-2.0
/** Sums of parts: they add up however a tensor is cut, and differ where a byte does. */
import { createHash } from "node:crypto"
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import { addSums, emptySum, formatSum, parseSum, sumOfBytes, sumUnderName } from "../../src/shards/PartialSum.ts"

const within = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

const bytesOf = (length: number, seed: number): Uint8Array => {
  const bytes = new Uint8Array(length)
  for (let at = 0; at < length; at += 32) {
    bytes.set(
      createHash("sha256")
        .update(`${seed} ${at}`)
        .digest()
        .subarray(0, Math.min(32, length - at)),
      at
    )
  }
  return bytes
}

describe("sums of parts of a tensor", () => {
  it.prop(
    "add up to that of the whole, wherever it is cut and wherever it begins",
    [within(0, 40_000), Schema.Array(within(0, 40_000)).check(Schema.isMaxLength(8)), within(0, 2 ** 45), within(0, 3)],
    ([length, cuts, start, shift]) => {
      const memory = new Uint8Array(length + shift)
      const bytes = memory.subarray(shift)
      bytes.set(bytesOf(length, length))
      const places = [0, ...cuts.map((cut) => Math.min(cut, length)), length].sort((a, b) => a - b)
      const parts = places.slice(1).map((end, at) => sumOfBytes(bytes.subarray(places[at], end), start + places[at]!))
      // In any order.
      assert.deepStrictEqual(parts.toReversed().reduce(addSums, emptySum), sumOfBytes(bytes, start))
    }
  )

  it("follow the algorithm that is stated, word by word", () => {
    const prime = 2n ** 31n - 1n
    const table = (list: number, digit: number, at: number): bigint => {
      const bytes = createHash("sha256")
        .update(`tensorferry sum ${list} ${digit} ${at - (at % 8)}`)
        .digest()
      return 1n + (BigInt(bytes.readUInt32LE(4 * (at % 8))) % (prime - 1n))
    }
    const [start, bytes] = [2 * (4096 * 4096 * 3 - 5), bytesOf(20, 7)]
    const expected = [0, 1].map((list) => {
      let sum = 0n
      for (let at = 0; at < bytes.length; at += 2) {
        const word = (start + at) / 2
        const digits = [word, word / 4096, word / 4096 ** 2, word / 4096 ** 3].map((each) => Math.floor(each) % 4096)
        const factor = digits.reduce((product, each, digit) => (product * table(list, digit, each)) % prime, 1n)
        sum = (sum + factor * BigInt(bytes[at]! + 256 * bytes[at + 1]!)) % prime
      }
      return Number(sum)
    })
    assert.deepStrictEqual([...sumOfBytes(bytes, start)], expected)
  })

  it.prop("differ where bytes differ, change places or move", [within(0, 19_998), within(1, 255)], ([at, by]) => {
    const bytes = bytesOf(20_000, 3)
    const sum = formatSum(sumOfBytes(bytes, 0))
    const changed = Uint8Array.from(bytes)
    changed[at] = bytes[at]! ^ by
    assert.notStrictEqual(formatSum(sumOfBytes(changed, 0)), sum)
    assert.notStrictEqual(formatSum(sumOfBytes(bytes, 1 + at)), sum)
    const swapped = Uint8Array.from(bytes)
    swapped[at] = bytes[at + 1]!
    swapped[at + 1] = bytes[at]!
    assert.strictEqual(formatSum(sumOfBytes(swapped, 0)) === sum, bytes[at] === bytes[at + 1])
  })

  it("are told apart by the name of their tensor, and read back from text", () => {
    const sum = sumOfBytes(bytesOf(100, 1), 0)
    assert.notDeepEqual(sumUnderName("a", sum), sumUnderName("b", sum))
    assert.deepStrictEqual(
      sumUnderName("a", addSums(sum, sum)),
      addSums(sumUnderName("a", sum), sumUnderName("a", sum))
    )
    assert.deepStrictEqual(parseSum(formatSum(sum)), sum)
    for (const text of ["", "0", "8000000000000000", `${formatSum(sum)}0`]) assert.isUndefined(parseSum(text))
  })
})
