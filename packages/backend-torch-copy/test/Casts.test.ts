/**
 * Casts give the bits of PyTorch's `tensor.to`, recorded in the data file of core's tests.
 */
import { createHash } from "node:crypto"
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, type DType, kindOf } from "@tensorferry/core/base/DType"
import * as Effect from "effect/Effect"
import { filled, makeEngine } from "./support.ts"

interface Cast {
  readonly src: DType
  readonly dst: DType
  readonly supported: boolean
  readonly outputs: string
  readonly undefined?: string
  readonly nan?: string
}
interface Golden {
  readonly inputs: Record<string, string>
  readonly casts: ReadonlyArray<Cast>
  readonly exhaustive16: ReadonlyArray<{ readonly src: DType; readonly dst: DType; readonly sha256: string }>
}

const file = new URL("../../../golden/dtype_casts/dtype_casts.json.gz", import.meta.url)
const golden: Golden = JSON.parse(gunzipSync(readFileSync(file)).toString())

const widthOf = (dtype: DType): number => bitsOf(dtype) / 8

/** Reverses the bytes of every element: the file writes numbers, memory holds them little-endian. */
const swapped = (bytes: Uint8Array, width: number): Uint8Array => {
  const out = new Uint8Array(bytes.length)
  for (let i = 0; i < bytes.length; i++) out[i] = bytes[i - (i % width) + width - 1 - (i % width)]!
  return out
}

const canonicalNaN: Partial<Record<DType, string>> = {
  float64: "7ff8000000000000",
  float32: "7fc00000",
  float16: "7e00",
  bfloat16: "7fc0",
  float8_e5m2: "7e",
  float8_e4m3fn: "7f",
  float8_e8m0fnu: "ff"
}

const cast = (src: DType, dst: DType, bigEndian: Uint8Array) =>
  Effect.gen(function* () {
    const { engine } = yield* makeEngine()
    const count = bigEndian.length / widthOf(src)
    const source = yield* engine.allocate(src, [count])
    source.storage.bytes!.set(swapped(bigEndian, widthOf(src)))
    const destination = yield* filled(engine, dst, [count], 0xa5)
    yield* engine.copy([{ dst: destination, src: source }])
    return swapped(Uint8Array.from(destination.storage.bytes!), widthOf(dst))
  }).pipe(Effect.scoped)

/** True where the value is a NaN or an infinity or its integer part does not fit the integer type. */
const isUndefined = (value: number, dst: DType): boolean => {
  const bits = bitsOf(dst)
  const low = kindOf(dst) === "unsigned" ? 0 : -(2 ** (bits - 1))
  const high = kindOf(dst) === "unsigned" ? 2 ** bits : 2 ** (bits - 1)
  const whole = Math.trunc(value)
  // The data counts 2^63 as an int64: the largest one is that as a float.
  return !(whole >= low && (whole < high || (bits === 64 && whole === high)))
}

describe("casts", () => {
  for (const { src, dst, supported, outputs, nan, undefined: open } of golden.casts) {
    it.live(`${src} -> ${dst}`, () =>
      Effect.gen(function* () {
        assert.isTrue(supported)
        const digits = 2 * widthOf(dst)
        const got = Buffer.from(yield* cast(src, dst, Buffer.from(golden.inputs[src]!, "hex"))).toString("hex")
        const wrong: Array<string> = []
        for (let i = 0; i < outputs.length / digits; i++) {
          if (open?.[i] === "1") continue
          const [mine, theirs] = [got.slice(i * digits, (i + 1) * digits), outputs.slice(i * digits, (i + 1) * digits)]
          const expected = nan?.[i] === "1" && src !== dst ? canonicalNaN[dst]! : theirs
          if (mine !== expected) wrong.push(`${i}: ${mine}, not ${expected}`)
        }
        assert.deepStrictEqual(wrong.slice(0, 5), [])
        assert.strictEqual(got.length, outputs.length)
      })
    )
  }

  it.live("all 65536 inputs of the 16-bit types", () =>
    Effect.gen(function* () {
      const all = new Uint8Array(2 * 65536)
      for (let i = 0; i < 65536; i++) all.set([i >> 8, i & 255], 2 * i)
      for (const { src, dst, sha256 } of golden.exhaustive16) {
        const got = yield* cast(src, dst, all)
        const width = widthOf(dst)
        if (kindOf(src) === "float" && kindOf(dst) !== "float" && dst !== "bool") {
          const values = new DataView(swapped(yield* cast(src, "float64", all), 8).buffer)
          for (let i = 0; i < 65536; i++) {
            if (isUndefined(values.getFloat64(8 * i, true), dst)) got.fill(0, i * width, (i + 1) * width)
          }
        }
        if (src === dst) {
          const values = new DataView(swapped(yield* cast(src, "float64", all), 8).buffer)
          const quiet = Buffer.from(canonicalNaN[dst] ?? "", "hex")
          for (let i = 0; i < 65536; i++) {
            if (Number.isNaN(values.getFloat64(8 * i, true))) got.set(quiet, i * width)
          }
        }
        assert.strictEqual(createHash("sha256").update(got).digest("hex"), sha256, `${src} -> ${dst}`)
      }
    })
  )
})
