// SPDX-License-Identifier: Apache-2.0
/**
 * Messages of runs: what repeats is known again, and nothing else is.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { makeMessages, remembered, remembering } from "../../src/copy/internal/messages.ts"

const upTo = (maximum: number) => Schema.Int.check(Schema.isBetween({ minimum: 0, maximum }))
const Said = Schema.Struct({
  count: Schema.Int,
  name: Schema.String,
  fault: Schema.NullOr(Schema.Struct({ at: Schema.Int }))
})
const plain = makeMessages(Said)

describe("remembered messages", () => {
  it.prop(
    "say what messages without memory say, whatever came before",
    {
      steps: Arbitrary.array(
        Arbitrary.schema(Schema.Struct({ count: upTo(1), name: upTo(1), fault: upTo(1), ranks: upTo(2) })),
        { maxLength: 12 }
      )
    },
    ({ steps }) => {
      const messages = remembering(plain)
      for (const { count, name, fault, ranks } of steps) {
        const value = { count, name: `n${name}`, fault: fault === 0 ? null : { at: count } }
        const bytes = messages.encode(value)
        assert.deepStrictEqual(bytes, plain.encode(value))
        const payloads = Array.from({ length: ranks + 1 }, (_, rank) =>
          rank === ranks ? bytes : plain.encode({ ...value, count: rank })
        )
        assert.deepStrictEqual(messages.decodeAll(payloads), plain.decodeAll(payloads))
      }
    }
  )

  it("are the same list while all ranks say the same", () => {
    const messages = remembering(plain)
    const payload = (count: number) => plain.encode({ count, name: "n", fault: null })
    const first = Result.getOrThrow(messages.decodeAll([payload(1), payload(2)]))
    assert.strictEqual(Result.getOrThrow(messages.decodeAll([payload(1), payload(2)])), first)
    const other = Result.getOrThrow(messages.decodeAll([payload(1), payload(3)]))
    assert.notStrictEqual(other, first)
    assert.deepStrictEqual(
      other.map(({ count }) => count),
      [1, 3]
    )
  })

  it("name the first rank that cannot be understood, and are not confused by it", () => {
    const messages = remembering(plain)
    const good = plain.encode({ count: 1, name: "n", fault: null })
    assert.isTrue(Result.isSuccess(messages.decodeAll([good, good])))
    const noise = Uint8Array.of(123, 34)
    assert.deepStrictEqual(messages.decodeAll([good, noise]), Result.fail(1))
    assert.isTrue(Result.isSuccess(messages.decodeAll([good, good])))
  })

  it("make a thing of a value once, also nothing", () => {
    let made = 0
    const of = remembered((key: object) => {
      made++
      return "x" in key ? key.x : undefined
    })
    const [one, other] = [{ x: 1 }, {}]
    assert.deepStrictEqual([of(one), of(one), of(other), of(other), made], [1, 1, undefined, undefined, 2])
  })
})
