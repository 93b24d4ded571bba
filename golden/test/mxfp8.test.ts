// SPDX-License-Identifier: Apache-2.0
/** The reference engine's block scaling has the recorded bits, for every rule. */
import { assert, describe, it } from "@effect/vitest"
import { make } from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { checkMxfp8, RecordedMxfp8 } from "../src/mxfp8.ts"
import { readGolden } from "../src/readGolden.ts"

const recorded = Schema.decodeUnknownSync(RecordedMxfp8)(readGolden("mxfp8"))

describe("against recorded results", () => {
  it("the data has every rule and refused shapes", () => {
    const rules = new Set(recorded.cases.flatMap(({ variants }) => Object.keys(variants ?? {})))
    assert.deepStrictEqual([...rules].sort(), ["ocp_floor", "rceil", "rceil_te"])
    assert.isTrue(recorded.cases.some(({ error }) => error !== undefined))
  })

  it.live("data, scales and the values they stand for", () =>
    Effect.gen(function* () {
      const verdicts = yield* checkMxfp8(make(), recorded)
      assert.isAbove(verdicts.length, recorded.cases.length)
      assert.deepStrictEqual(
        verdicts.filter(({ fault }) => fault !== undefined),
        []
      )
    })
  )

  it.live("a wrong bit is noticed", () =>
    Effect.gen(function* () {
      const reference = make()
      const wrong = {
        ...reference,
        quantize: (source: Parameters<typeof reference.quantize>[0], to: Parameters<typeof reference.quantize>[1]) =>
          Effect.map(reference.quantize(source, to), () => {
            const { storage, byteOffset } = to.scale
            if (storage.bytes!.length > byteOffset) storage.bytes![byteOffset]! ^= 1
          })
      }
      const verdicts = yield* checkMxfp8(wrong, recorded)
      assert.isAbove(verdicts.filter(({ fault }) => fault?.startsWith("scale 0") === true).length, 10)
    })
  )
})
