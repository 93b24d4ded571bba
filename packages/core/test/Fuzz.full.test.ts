// SPDX-License-Identifier: Apache-2.0
/**
 * Parsers of foreign data on damaged inputs: each ends with a value that keeps its rules or with its own typed error,
 * soon and in little memory.
 */

import { assert, describe, it } from "@effect/vitest"
import { fuzz } from "@tensorferry/testing/fuzz"
import { makeRandom, mutantByteLimit, mutateBytes, mutateEncoded, mutateJson } from "@tensorferry/testing/mutate"
import { describeFuzz } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import { targets } from "./fixtures/fuzzTargets.ts"

const fuzzed = new URL("./fixtures/fuzzTargets.ts", import.meta.url)

describeFuzz(fuzzed, Object.keys(targets), { seconds: 5, megabytes: 400 })

describe("the harness", () => {
  const script = new URL("./fixtures/fuzzFaults.ts", import.meta.url)
  const run = (target: string) => Effect.flip(fuzz({ script, target, seed: 7, millis: 30_000 }))

  for (const [target, detail] of [
    ["defect", /seed 9: .*no parser may/s],
    ["broken rule", /seed 9: .*accepted, but wrong/s],
    ["bomb", /ended with .* seed 9\./],
    ["exit", /ended with 3 in the case of seed 9\./]
  ] as const) {
    it.live(`finds and names a ${target}`, () =>
      Effect.map(run(target), (found) => {
        assert.match(found, detail)
      })
    )
  }
})

describe("mutants", () => {
  const text = JSON.stringify({ a: [1, 2, { b: "c" }], "d e": { f: null, g: -0.5 } })

  it("are the same for the same seed, differ between seeds, and stay small", () => {
    const mutants = Array.from({ length: 500 }, (_, at) => mutateEncoded(text, makeRandom(at)))
    for (const [at, mutant] of mutants.entries()) {
      assert.deepStrictEqual(mutateEncoded(text, makeRandom(at)), mutant)
      assert.isBelow(mutant.length, 16 * mutantByteLimit)
    }
    // Long keys are repeated no more than long values.
    const longKey = JSON.stringify({ ["x".repeat(5000)]: 1 })
    for (let at = 0; at < 500; at++) assert.isBelow(mutateJson(longKey, makeRandom(at)).length, 16 * mutantByteLimit)
    assert.isAbove(new Set(mutants.map((mutant) => Buffer.from(mutant).toString("latin1"))).size, 250)
  })

  it("reach every kind of damage", () => {
    const mutants = Array.from({ length: 2000 }, (_, at) => mutateJson(text, makeRandom(at)))
    for (const part of ["__proto__", "[".repeat(5000), "1e309", "-0", "9007199254740993", "\\ud800"]) {
      assert.isTrue(
        mutants.some((mutant) => mutant.includes(part)),
        part.slice(0, 20)
      )
    }
    // A key twice, which no printer of JSON writes.
    assert.isTrue(mutants.some((mutant) => mutant.length < 500 && /"f":.*"f":/.test(mutant)))
    const bytes = Uint8Array.from({ length: 64 }, (_, at) => at)
    const lengths = new Set(Array.from({ length: 300 }, (_, at) => mutateBytes(bytes, makeRandom(at)).length))
    assert.isTrue(lengths.has(64))
    assert.isTrue(lengths.has(0))
    assert.isBelow(64, Math.max(...lengths))
  })
})
