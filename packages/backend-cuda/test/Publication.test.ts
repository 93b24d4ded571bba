// SPDX-License-Identifier: Apache-2.0
/** What ranks tell each other arrives as it was told, and what is damaged is refused, never thrown. */
import { assert, describe, it } from "@effect/vitest"
import { encodeOutcome } from "@tensorferry/native/driver/Outcome"
import { processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeFindings, decodePublication, encodePublication, type Publication } from "../src/Publication.ts"

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
    [12, "{}"]
  ]),
  fault: null
}

describe("publications", () => {
  it("arrive as they were encoded", () => {
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
      const damaged = encodePublication(publication)
      damaged[at % damaged.length] = byte
      decodePublication(damaged)
      decodePublication(damaged.subarray(0, at % damaged.length))
    },
    { arbitrary: { runs: 300, seed: "damage" } }
  )
})
