/** The reference engine's conversions have the bits of PyTorch's, wherever PyTorch defines them. */
import { createHash } from "node:crypto"
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { bitsOf, DType, dtypes, isCastable, kindOf } from "../src/base/DType.ts"
import { tensorView } from "../src/tensor/Tensor.ts"
import { elementCodec } from "../src/testing/casts.ts"
import { make } from "../src/testing/ReferenceEngine.ts"

const Cast = Schema.Struct({
  src: DType,
  dst: DType,
  supported: Schema.Boolean,
  outputs: Schema.String,
  undefined: Schema.optionalKey(Schema.String),
  nan: Schema.optionalKey(Schema.String)
})
const Golden = Schema.Struct({
  dtypes: Schema.Record(Schema.String, Schema.Int),
  inputs: Schema.Record(Schema.String, Schema.String),
  casts: Schema.Array(Cast),
  exhaustive16: Schema.Array(Schema.Struct({ src: DType, dst: DType, sha256: Schema.String }))
})
const path = new URL("./data/dtype_casts.json.gz", import.meta.url)
const golden = Schema.decodeUnknownSync(Golden)(JSON.parse(gunzipSync(readFileSync(path)).toString("utf8")))

const engine = make()
const bytesPer = (dtype: DType): number => bitsOf(dtype) / 8

/** Elements from hexadecimal numbers to memory order, or back: every element's bytes are turned around. */
const turned = (bytes: Uint8Array, size: number): Uint8Array => {
  const out = new Uint8Array(bytes.length)
  for (let at = 0; at < bytes.length; at++) out[at] = bytes[at - (at % size) + size - 1 - (at % size)]!
  return out
}

const cast = (src: DType, dst: DType, input: Uint8Array) =>
  Effect.gen(function* () {
    const count = input.length / bytesPer(src)
    const storage = yield* engine.wrapHost(input)
    const source = yield* Effect.fromResult(tensorView(storage, src, [count]))
    const target = yield* engine.allocate(dst, [count])
    yield* engine.copy([{ dst: target, src: source }])
    return target.storage.bytes!
  })

const isNaNAt = (dtype: DType, bytes: Uint8Array, element: number): boolean => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  return Number.isNaN(elementCodec(dtype)!.read(view, element * bytesPer(dtype)))
}

const isInteger = (dtype: DType) => kindOf(dtype) === "integer" || kindOf(dtype) === "unsigned"

describe("against PyTorch", () => {
  it("the data covers every pair of its types", () => {
    const names = Object.keys(golden.inputs)
    assert.strictEqual(golden.casts.length, names.length ** 2)
    assert.isTrue(golden.casts.every(({ src, dst, supported }) => supported && isCastable(src, dst)))
  })

  for (const { src, dst, outputs, undefined: undefinedMask, nan } of golden.casts) {
    it.live(`${src} to ${dst}`, () =>
      Effect.gen(function* () {
        const input = turned(Buffer.from(golden.inputs[src]!, "hex"), bytesPer(src))
        const actual = yield* cast(src, dst, input)
        const expected = turned(Buffer.from(outputs, "hex"), bytesPer(dst))
        assert.strictEqual(actual.length, expected.length)
        const size = bytesPer(dst)
        let compared = 0
        for (let element = 0; element < actual.length / size; element++) {
          if (undefinedMask?.[element] === "1") continue
          compared += 1
          const [start, stop] = [element * size, (element + 1) * size]
          const pattern = Buffer.from(input.subarray(element * bytesPer(src), (element + 1) * bytesPer(src))).toString(
            "hex"
          )
          if (nan?.[element] === "1") assert.isTrue(isNaNAt(dst, actual, element), `${pattern} should become NaN`)
          else assert.deepStrictEqual(actual.subarray(start, stop), expected.subarray(start, stop), `input ${pattern}`)
        }
        assert.isAbove(compared, 0)
      })
    )
  }
})

describe("all 65536 inputs against PyTorch", () => {
  const every = new Uint8Array(Uint16Array.from({ length: 65_536 }, (_, value) => value).buffer)

  /** Zeroes what float to integer leaves open: NaN, infinity and values out of range. */
  const clearUndefined = (src: DType, dst: DType, output: Uint8Array): void => {
    if (kindOf(src) !== "float" || !isInteger(dst)) return
    const bits = bitsOf(dst)
    const isUnsigned = kindOf(dst) === "unsigned"
    const least = isUnsigned ? 0 : -(2 ** (bits - 1))
    // The data takes 2^63 for a value in range of int64: its largest value, as a float64, is that.
    const largest = 2 ** (isUnsigned ? bits : bits - 1) - 1
    const view = new DataView(every.buffer)
    for (let element = 0; element < 65_536; element++) {
      const whole = Math.trunc(Number(elementCodec(src)!.read(view, element * 2)))
      const isDefined = whole >= least && whole <= largest
      if (!isDefined) output.fill(0, element * bytesPer(dst), (element + 1) * bytesPer(dst))
    }
  }

  for (const { src, dst, sha256 } of golden.exhaustive16) {
    it.live(`${src} to ${dst}`, () =>
      Effect.gen(function* () {
        const output = yield* cast(src, dst, every)
        clearUndefined(src, dst, output)
        assert.strictEqual(
          createHash("sha256")
            .update(turned(output, bytesPer(dst)))
            .digest("hex"),
          sha256
        )
      })
    )
  }
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
