// SPDX-License-Identifier: Apache-2.0
/**
 * Stored numbers as float32 and back, for values that a model's files hold. Reading is exact for every type up to float32;
 * writing rounds once, to nearest, ties to even.
 */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"

/** A pattern of `exponent` and `mantissa` bits as a number. `isFinite` types have one NaN beside numbers, and no infinity. */
const floatOf = (bits: number, exponent: number, mantissa: number, isFinite: boolean): number => {
  const sign = bits >> (exponent + mantissa) ? -1 : 1
  const [e, m] = [(bits >> mantissa) & ((1 << exponent) - 1), bits & ((1 << mantissa) - 1)]
  const [top, all] = [(1 << exponent) - 1, (1 << mantissa) - 1]
  if (e === top && (!isFinite || m === all)) return isFinite || m !== 0 ? Number.NaN : sign * Number.POSITIVE_INFINITY
  const bias = top >> 1
  return e === 0 ? sign * m * 2 ** (1 - bias - mantissa) : sign * (1 + m / (1 << mantissa)) * 2 ** (e - bias)
}

const tableOf = (size: number, value: (code: number) => number): Float32Array =>
  Float32Array.from({ length: size }, (_, code) => value(code))

const byteTables = {
  float8_e4m3fn: tableOf(256, (code) => floatOf(code, 4, 3, true)),
  float8_e5m2: tableOf(256, (code) => floatOf(code, 5, 2, false)),
  float8_e8m0fnu: tableOf(256, (code) => (code === 255 ? Number.NaN : 2 ** (code - 127)))
} as const

let halves: Float32Array | undefined

/** All float16 numbers; made when the first is needed. */
const halfTable = (): Float32Array => {
  halves ??= tableOf(65_536, (code) => floatOf(code, 5, 10, false))
  return halves
}

/** Values of 4-bit floats by their code. */
export const e2m1Values: ReadonlyArray<number> = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6]

type Words = Uint8Array | Int8Array | Uint16Array | Int16Array | Uint32Array | Int32Array | Float32Array

/** The elements of one type at any offset: words are copied where they do not lie at a multiple of their width. */
const wordsOf = <A extends Words>(
  make: { new (buffer: ArrayBufferLike, offset: number, length: number): A; readonly BYTES_PER_ELEMENT: number },
  bytes: Uint8Array
): A => {
  const width = make.BYTES_PER_ELEMENT
  const aligned = bytes.byteOffset % width === 0 ? bytes : bytes.slice()
  return new make(aligned.buffer, aligned.byteOffset, bytes.length / width)
}

/** A loop: mapping by `from` takes many times as long. */
const lookedUp = (table: Float32Array, codes: Uint8Array | Uint16Array): Float32Array => {
  const values = new Float32Array(codes.length)
  for (let at = 0; at < codes.length; at++) values[at] = table[codes[at]!]!
  return values
}

/** Whether values of this type can be read as float32. */
export const hasValues = (dtype: DType): boolean =>
  dtype in byteTables ||
  ["float16", "bfloat16", "float32", "float64", "bool"].includes(dtype) ||
  /^u?int(8|16|32|64)$/.test(dtype)

/** Dense elements as float32. The type is one of those that `hasValues` names. */
export const toFloats = (dtype: DType, bytes: Uint8Array): Float32Array => {
  const table = byteTables[dtype as keyof typeof byteTables]
  if (table !== undefined) return lookedUp(table, bytes)
  switch (dtype) {
    case "float32":
      return wordsOf(Float32Array, bytes)
    case "bfloat16": {
      const words = wordsOf(Uint16Array, bytes)
      const out = new Uint32Array(words.length)
      for (let at = 0; at < words.length; at++) out[at] = words[at]! << 16
      return new Float32Array(out.buffer)
    }
    case "float16": {
      return lookedUp(halfTable(), wordsOf(Uint16Array, bytes))
    }
    case "int8":
      return new Float32Array(wordsOf(Int8Array, bytes))
    case "int16":
      return new Float32Array(wordsOf(Int16Array, bytes))
    case "int32":
      return new Float32Array(wordsOf(Int32Array, bytes))
    case "uint16":
      return new Float32Array(wordsOf(Uint16Array, bytes))
    case "uint32":
      return new Float32Array(wordsOf(Uint32Array, bytes))
    case "float64":
    case "int64":
    case "uint64": {
      const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
      return Float32Array.from({ length: bytes.length / 8 }, (_, at) =>
        dtype === "float64"
          ? view.getFloat64(8 * at, true)
          : Number(dtype === "int64" ? view.getBigInt64(8 * at, true) : view.getBigUint64(8 * at, true))
      )
    }
    default:
      return new Float32Array(bytes)
  }
}

const scratch = new Float32Array(1)
const scratchBits = new Uint32Array(scratch.buffer)

const bfloatBits = (value: number): number => {
  scratch[0] = value
  const bits = scratchBits[0]!
  if (Number.isNaN(value)) return 0x7fc0
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16
}

const halfBits = (value: number): number => {
  if (Number.isNaN(value)) return 0x7e00
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0
  const magnitude = Math.abs(value)
  // Half of the step above the largest number, and everything beyond, is infinite.
  if (magnitude >= 65_520) return sign | 0x7c00
  const exponent = Math.max(-14, magnitude === 0 ? -14 : Math.floor(Math.log2(magnitude)))
  const exact =
    magnitude >= 2 ** (exponent + 1)
      ? exponent + 1
      : magnitude < 2 ** exponent && exponent > -14
        ? exponent - 1
        : exponent
  const scaled = magnitude / 2 ** (exact - 10)
  const below = Math.floor(scaled)
  const rest = scaled - below
  const rounded = rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below
  // A carry goes into the exponent by itself; subnormal numbers have no hidden bit.
  return sign | ((exact + 14) * 1024 + rounded)
}

/** The types that values can be written as. */
export const writtenTypes = ["float32", "bfloat16", "float16"] as const
/** One of them. */
export type WrittenType = (typeof writtenTypes)[number]

/** Writes values as dense elements of a type into `into`. */
export const writeFloats = (dtype: WrittenType, values: Float32Array, into: Uint8Array): void => {
  if (dtype === "float32") {
    into.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength))
    return
  }
  const bitsOfValue = dtype === "bfloat16" ? bfloatBits : halfBits
  for (let at = 0; at < values.length; at++) {
    const bits = bitsOfValue(values[at]!)
    into[2 * at] = bits & 0xff
    into[2 * at + 1] = bits >>> 8
  }
}

/** Rounds values to those that a narrower type has. */
export const roundTo = (dtype: DType, values: Float32Array): Float32Array => {
  if (dtype !== "bfloat16" && dtype !== "float16") return values
  const bytes = new Uint8Array((values.length * bitsOf(dtype)) / 8)
  writeFloats(dtype, values, bytes)
  return toFloats(dtype, bytes)
}
