// SPDX-License-Identifier: Apache-2.0
/** The reference engine's conversions have the bits of PyTorch's, wherever PyTorch defines them. */
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, type DType, dtypes, isCastable, kindOf } from "@tensorferry/core/base/DType"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { checkCasts, RecordedCasts } from "@tensorferry/golden/dtypeCasts"
import { readGolden } from "@tensorferry/golden/readGolden"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { make } from "../src/ReferenceEngine.ts"
import { elementCodec } from "../src/values/casts.ts"

const golden = Schema.decodeUnknownSync(RecordedCasts)(readGolden("dtype_casts"))

const engine = make()
const bytesPer = (dtype: DType): number => bitsOf(dtype) / 8

const cast = (src: DType, dst: DType, input: Uint8Array) =>
  Effect.gen(function* () {
    const count = input.length / bytesPer(src)
    const storage = yield* engine.wrapHost(input)
    const source = yield* Effect.fromResult(tensorView(storage, src, [count]))
    const target = yield* engine.allocate(dst, [count])
    yield* engine.copy([{ dst: target, src: source }])
    return target.storage.bytes!
  })

describe("against PyTorch", () => {
  it("the data covers every pair of its types", () => {
    const names = Object.keys(golden.inputs)
    assert.strictEqual(golden.casts.length, names.length ** 2)
    assert.isTrue(golden.casts.every(({ src, dst, supported }) => supported && isCastable(src, dst)))
  })

  it.live("every pair of types, and all inputs of 16-bit types", () =>
    Effect.gen(function* () {
      const verdicts = yield* checkCasts(engine, golden)
      assert.strictEqual(verdicts.length, golden.casts.length + golden.exhaustive16.length)
      assert.deepStrictEqual(
        verdicts.filter((verdict) => verdict.fault !== undefined),
        []
      )
    })
  )
})

describe("what PyTorch leaves open", () => {
  const castable = dtypes.filter((dtype) => kindOf(dtype) !== "opaque")

  it.live("float to integer: NaN and infinity give 0, other values keep their low bits", () =>
    Effect.gen(function* () {
      const values = [
        Number.NaN,
        Number.POSITIVE_INFINITY,
        Number.NEGATIVE_INFINITY,
        300.9,
        -300.9,
        -1.5,
        2 ** 63,
        2 ** 64 + 2 ** 13
      ]
      const input = new Uint8Array(Float64Array.from(values).buffer)
      assert.deepStrictEqual(yield* cast("float64", "uint8", input), Uint8Array.of(0, 0, 0, 44, 212, 255, 0, 0))
      assert.deepStrictEqual(
        yield* cast("float64", "int16", input),
        new Uint8Array(Int16Array.of(0, 0, 0, 300, -300, -1, 0, 8192).buffer)
      )
      assert.deepStrictEqual(
        yield* cast("float64", "uint64", input),
        new Uint8Array(BigUint64Array.of(0n, 0n, 0n, 300n, 2n ** 64n - 300n, 2n ** 64n - 1n, 2n ** 63n, 8192n).buffer)
      )
    })
  )

  it.live("unsigned integers wider than a byte", () =>
    Effect.gen(function* () {
      const large = new Uint8Array(BigUint64Array.of(2n ** 64n - 1n, 2n ** 63n + 2n ** 39n + 1n, 2n ** 24n + 1n).buffer)
      assert.deepStrictEqual(
        yield* cast("uint64", "float32", large),
        new Uint8Array(Float32Array.of(2 ** 64, 2 ** 63 + 2 ** 40, 2 ** 24).buffer)
      )
      assert.deepStrictEqual(
        yield* cast("uint64", "uint16", large),
        new Uint8Array(Uint16Array.of(65_535, 1, 1).buffer)
      )
      const words = new Uint8Array(Uint32Array.of(2 ** 32 - 1, 2 ** 31).buffer)
      assert.deepStrictEqual(
        yield* cast("uint32", "int64", words),
        new Uint8Array(BigInt64Array.of(2n ** 32n - 1n, 2n ** 31n).buffer)
      )
      assert.deepStrictEqual(
        yield* cast("uint32", "float64", words),
        new Uint8Array(Float64Array.of(2 ** 32 - 1, 2 ** 31).buffer)
      )
    })
  )

  it.live("a cast to the own type keeps every bit, NaN payloads too", () =>
    Effect.gen(function* () {
      for (const dtype of castable) {
        const input = Uint8Array.from({ length: 256 * 8 }, (_, at) => (at * 37 + (at >> 8)) & 0xff).fill(0xff, 0, 8)
        assert.deepStrictEqual(yield* cast(dtype, dtype, input), input, dtype)
      }
    })
  )

  it("types that are moved as bits have no conversion", () => {
    for (const dtype of dtypes) assert.strictEqual(elementCodec(dtype) === undefined, kindOf(dtype) === "opaque", dtype)
  })
})
