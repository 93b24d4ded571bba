/** What ranks tell each other arrives as it was told, and what is damaged is refused, never thrown. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { processIdentity } from "../src/identity.ts"
import {
  decodeDone,
  decodeFindings,
  decodePeerList,
  decodePublication,
  encodeOutcome,
  encodePeerList,
  encodePublication,
  type PeerList,
  type Publication
} from "../src/Publication.ts"

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

const publication: Publication = {
  settings: {
    process: processIdentity(),
    deviceUuid: "ab",
    ordinal: 2,
    direction: "auto",
    stagingBytes: 1,
    directBytes: 2,
    hasCollectives: true,
    connection: 0,
    revoked: [3],
    carriedOut: 4
  },
  lists: new Map([
    [0, "x"],
    [12, encodePeerList(list)]
  ]),
  fault: null
}

describe("publications", () => {
  it("arrive as they were told", () => {
    assert.deepStrictEqual(Result.getOrThrow(decodePeerList(encodePeerList(list))), list)
    assert.deepStrictEqual(Result.getOrThrow(decodePublication(encodePublication(publication))), publication)
    const finding = [{ peer: 1, isReceiving: true, reached: { _tag: "Unreached", why: "far" } }] as const
    assert.deepStrictEqual(Result.getOrThrow(decodeFindings(encodeOutcome({ _tag: "Done", value: finding }))), {
      _tag: "Done",
      value: finding
    })
  })

  it.prop(
    "are refused or read, whatever is changed in them",
    [
      Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 100_000 })),
      Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 255 }))
    ],
    ([at, byte]) => {
      for (const bytes of [encodePublication(publication), encodeOutcome({ _tag: "Done", value: null })]) {
        const damaged = Uint8Array.from(bytes)
        damaged[at % damaged.length] = byte
        decodePublication(damaged)
        decodeDone(damaged)
        decodePublication(damaged.subarray(0, at % damaged.length))
      }
      const text = encodePeerList(list)
      const where = at % text.length
      decodePeerList(text.slice(0, where) + String.fromCharCode(byte) + text.slice(where + 1))
      decodePeerList(text.slice(0, where))
    },
    { arbitrary: { runs: 300, seed: "damage" } }
  )

  it("refuse rows that are no parts", () => {
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
