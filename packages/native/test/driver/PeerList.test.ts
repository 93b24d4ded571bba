// SPDX-License-Identifier: Apache-2.0
/** What drivers tell each other of their memory arrives as it was told, and what is damaged is refused, never thrown. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeDone, decodeOutcome, encodeOutcome } from "../../src/driver/Outcome.ts"
import { decodePeerList, encodePeerList, type PeerList } from "../../src/driver/PeerList.ts"

const list: PeerList = {
  blocks: [
    { number: 7, address: 2 ** 47, byteLength: 2 ** 26, handle: "0f".repeat(64), problem: "" },
    { number: 9, address: 4096, byteLength: 1, handle: "", problem: "reserved" }
  ],
  memories: [{ address: 2 ** 47 + 256, byteLength: 100, ordinal: 1, block: 0 }],
  messages: [
    {
      direction: "send",
      index: 3,
      parts: [
        { taskId: 2 ** 53 - 1, part: 1, dtype: "bfloat16", shape: [2, 3], strides: [1, 2], memory: 0, byteOffset: 5 },
        { taskId: 0, part: 0, dtype: "float4_e2m1fn", shape: [], strides: [], memory: 0, byteOffset: 0 }
      ]
    },
    { direction: "recv", index: 0, parts: [] }
  ]
}

const inBytes = new TextDecoder()

describe("PeerList", () => {
  it("arrives as it was encoded", () => {
    assert.deepStrictEqual(Result.getOrThrow(decodePeerList(encodePeerList(list))), list)
  })

  it("keeps the form that other versions of a driver read", () => {
    const { messages, ...rest } = JSON.parse(encodePeerList(list))
    assert.deepStrictEqual(rest, { blocks: list.blocks, memories: list.memories })
    assert.deepStrictEqual(messages, [
      {
        direction: "send",
        index: 3,
        parts: [
          [2 ** 53 - 1, 1, 10, 0, 5, 2, 3, 1, 2],
          [0, 0, 18, 0, 0]
        ]
      },
      { direction: "recv", index: 0, parts: [] }
    ])
  })

  it.prop(
    "is refused or read, whatever is changed in it",
    [
      Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 100_000 })),
      Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 255 }))
    ],
    ([at, byte]) => {
      const text = encodePeerList(list)
      const where = at % text.length
      decodePeerList(text.slice(0, where) + String.fromCharCode(byte) + text.slice(where + 1))
      decodePeerList(text.slice(0, where))
    },
    { arbitrary: { runs: 300, seed: "damage" } }
  )

  it("refuses rows that are not parts", () => {
    for (const row of [[], [1, 2, 3, 4], [0, 0, 99, 0, 0], [0, 0, 1, 0, 0, 5], [0, 0, 1, 0, 0.5], [0, 0, 1, 0, -1]]) {
      const text = JSON.stringify({
        blocks: [],
        memories: [],
        messages: [{ direction: "send", index: 0, parts: [row] }]
      })
      assert.isTrue(Result.isFailure(decodePeerList(text)), JSON.stringify(row))
    }
  })
})

describe("Outcome", () => {
  it("arrives as it was encoded, in the form that other versions of a driver read", () => {
    const numbers = decodeOutcome(Schema.Array(Schema.Int))
    const done = encodeOutcome({ _tag: "Done", value: [1, 2] })
    assert.strictEqual(inBytes.decode(done), '{"_tag":"Done","value":[1,2]}')
    assert.deepStrictEqual(Result.getOrThrow(numbers(done)), { _tag: "Done", value: [1, 2] })
    const reason = {
      _tag: "Broken",
      detail: "It is.",
      remedy: "Mend it.",
      scope: "service",
      isRetryable: false
    } as const
    const failed = Result.getOrThrow(numbers(encodeOutcome({ _tag: "Failed", reason })))
    assert.deepStrictEqual(failed, { _tag: "Failed", reason })
  })

  it("is refused where the value is of another kind or bytes are damaged", () => {
    const done = encodeOutcome({ _tag: "Done", value: null })
    assert.isTrue(Result.isFailure(decodeOutcome(Schema.Int)(done)))
    for (let length = 0; length < done.length; length++) {
      const refused = decodeDone(done.subarray(0, length))
      assert.isTrue(Result.isFailure(refused) && !refused.failure.includes("\n"), String(length))
    }
  })
})
