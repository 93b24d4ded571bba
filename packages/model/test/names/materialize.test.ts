// SPDX-License-Identifier: Apache-2.0
/** Bytes of tensors that are made of strips: runs, steps, zeros, and what is refused. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { materialize } from "../../src/names/materialize.ts"
import { interleave, pad, transpose, wholeAssembly } from "../../src/names/Strips.ts"

const sources: { readonly [name: string]: Uint8Array } = {
  a: Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8]),
  b: Uint8Array.from([9, 10, 11, 12])
}
const read = (name: string): Uint8Array => sources[name]!
const a = wholeAssembly("a", [4, 2])
const b = wholeAssembly("b", [2, 2])

const bytesOf = (assembly: typeof a, dtype: "uint8" | "bfloat16" = "uint8") => [
  ...Result.getOrThrow(materialize({ ...assembly, name: "made", dtype }, read))
]

describe("materialize", () => {
  it("takes rows of several tensors in turns", () => {
    assert.deepStrictEqual(bytesOf(interleave([a, b], 2)), [1, 2, 3, 4, 9, 10, 5, 6, 7, 8, 11, 12])
  })
  it("exchanges dimensions, whatever the size of an element", () => {
    assert.deepStrictEqual(bytesOf(transpose(a, [1, 0])), [1, 3, 5, 7, 2, 4, 6, 8])
    const wide = transpose(wholeAssembly("a", [2, 2]), [1, 0])
    assert.deepStrictEqual(bytesOf(wide, "bfloat16"), [1, 2, 5, 6, 3, 4, 7, 8])
  })
  it("has zeros where nothing is", () => {
    assert.deepStrictEqual(bytesOf(pad(b, 0, 3)), [9, 10, 11, 12, 0, 0])
    assert.deepStrictEqual(bytesOf(pad(b, 1, 3)), [9, 10, 0, 11, 12, 0])
  })
  it("refuses values that change, and elements of parts of a byte", () => {
    const changed = { ...b, strips: b.strips.map((strip) => ({ ...strip, scalar: "negExp" as const })) }
    const refusals = [
      materialize({ ...changed, name: "made", dtype: "float32" }, read),
      materialize({ ...b, name: "made", dtype: "float4_e2m1fn" }, read)
    ].map((made) => Result.getOrThrow(Result.flip(made)))
    assert.deepStrictEqual(
      refusals.map(({ kind, subject, detail }) => [kind, subject, detail]),
      [
        ["unsupported", "made", "Its values go through a function."],
        ["unsupported", "made", "float4_e2m1fn has no whole bytes."]
      ]
    )
  })
})
