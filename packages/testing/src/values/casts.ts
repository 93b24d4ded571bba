// SPDX-License-Identifier: Apache-2.0
/**
 * The bits of every conversion between element types: what `TensorEngine.copy` must give on every device.
 *
 * Invariant: a conversion depends on the value alone. Narrow floats are reached through float32, rounded to nearest, ties
 * to even; float to integer truncates and then keeps the low bits, NaN and infinity give 0; integers keep their low bits;
 * bool is "not zero". A NaN result is the type's canonical quiet NaN here; elsewhere its sign and payload may differ.
 */
import type { DType } from "@tensorferry/core/base/DType"

/** An element as a value: a bigint for 64-bit integers, else a number. */
export type ElementValue = number | bigint

/** Reads the little-endian element at this byte. */
export type ReadElement = (view: DataView, byteOffset: number) => ElementValue
/** Converts a value and writes it as the little-endian element at this byte. */
export type WriteElement = (view: DataView, byteOffset: number, value: ElementValue) => void

/** Reads and writes the elements of one type. */
export interface ElementCodec {
  readonly read: ReadElement
  /** Converts a value of any type to this one. */
  readonly write: WriteElement
}

interface FloatFormat {
  readonly exponentBits: number
  readonly mantissaBits: number
  /** The largest pattern is a number, beside one NaN, and larger values become the largest number. */
  readonly saturates: boolean
}

const float16: FloatFormat = { exponentBits: 5, mantissaBits: 10, saturates: false }
const bfloat16: FloatFormat = { exponentBits: 8, mantissaBits: 7, saturates: false }
const float8e5m2: FloatFormat = { exponentBits: 5, mantissaBits: 2, saturates: false }
const float8e4m3fn: FloatFormat = { exponentBits: 4, mantissaBits: 3, saturates: true }

const word = new DataView(new ArrayBuffer(4))

const float32Bits = (value: number): number => {
  word.setFloat32(0, value, true)
  return word.getUint32(0, true)
}

/** A bigint rounded once to float32. `Number` would round to float64 first. */
const bigintToFloat32 = (value: bigint): number => {
  const magnitude = value < 0n ? -value : value
  if (magnitude < 1n << 53n) return Math.fround(Number(value))
  // 53 bits remain, the last of which stands for all that was cut off, so that the second rounding sees what the first
  // one dropped.
  const shift = BigInt(magnitude.toString(2).length - 53)
  const kept = magnitude >> shift
  const sticky = kept << shift === magnitude ? kept : kept | 1n
  const rounded = Math.fround(Number(sticky) * 2 ** Number(shift))
  return value < 0n ? -rounded : rounded
}

const toFloat32 = (value: ElementValue): number =>
  typeof value === "bigint" ? bigintToFloat32(value) : Math.fround(value)

const encodeFloat = (value: number, { exponentBits, mantissaBits, saturates }: FloatFormat): number => {
  const exponentMask = (1 << exponentBits) - 1
  const infinity = exponentMask << mantissaBits
  if (Number.isNaN(value))
    return saturates ? infinity | ((1 << mantissaBits) - 1) : infinity | (1 << (mantissaBits - 1))
  const sign = value < 0 || Object.is(value, -0) ? 1 << (exponentBits + mantissaBits) : 0
  const largest = saturates ? infinity + (1 << mantissaBits) - 2 : infinity
  const magnitude = Math.abs(value)
  if (magnitude === Number.POSITIVE_INFINITY) return sign | largest
  const least = 2 - (1 << (exponentBits - 1))
  const exponent = Math.max((float32Bits(magnitude) >>> 23) - 127, least)
  // Exact: a division by a power of two.
  const scaled = magnitude / 2 ** (exponent - mantissaBits)
  const below = Math.floor(scaled)
  const rest = scaled - below
  const rounded = rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below
  // A normal number brings its hidden bit along, and so does a subnormal one that was rounded up to normal.
  const bits = (exponent - least) * 2 ** mantissaBits + rounded
  return sign | Math.min(bits, largest)
}

const decodeFloat = (bits: number, { exponentBits, mantissaBits, saturates }: FloatFormat): number => {
  const exponentMask = (1 << exponentBits) - 1
  const sign = bits >>> (exponentBits + mantissaBits) === 1 ? -1 : 1
  const exponent = (bits >>> mantissaBits) & exponentMask
  const mantissa = bits & ((1 << mantissaBits) - 1)
  const scale = 2 ** (Math.max(exponent, 1) + 1 - (1 << (exponentBits - 1)) - mantissaBits)
  const magnitude = (mantissa + (exponent === 0 ? 0 : 1 << mantissaBits)) * scale
  if (exponent < exponentMask) return sign * magnitude
  if (saturates) return mantissa === (1 << mantissaBits) - 1 ? Number.NaN : sign * magnitude
  return mantissa === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN
}

/**
 * Exponent of a value without sign and mantissa, offset by 127; 255 is NaN, which infinity becomes too. Rounds up from
 * above one half of the way to the next power of two, and at one half where the exponent is not the least.
 */
const encodeE8m0 = (value: number): number => {
  const bits = float32Bits(value)
  const exponent = (bits >>> 23) & 0xff
  const mantissa = bits & 0x7fffff
  if (exponent === 0xff) return 0xff
  const half = 0x400000
  return mantissa > half || (mantissa === half && exponent > 0) ? exponent + 1 : exponent
}

/** All numbers of a format of at most 16 bits, made when one is first asked for. */
const numbersOf = (bits: number, format: FloatFormat): (() => Float64Array) => {
  let numbers: Float64Array | undefined
  return () => (numbers ??= Float64Array.from({ length: 1 << bits }, (_, at) => decodeFloat(at, format)))
}

const narrow8 = (format: FloatFormat, numbers = numbersOf(8, format)): ElementCodec => ({
  read: (view, at) => numbers()[view.getUint8(at)]!,
  write: (view, at, value) => view.setUint8(at, encodeFloat(toFloat32(value), format))
})

const narrow16 = (format: FloatFormat, numbers = numbersOf(16, format)): ElementCodec => ({
  read: (view, at) => numbers()[view.getUint16(at, true)]!,
  write: (view, at, value) => view.setUint16(at, encodeFloat(toFloat32(value), format), true)
})

/** The low 32 bits of the truncated value, as a number that the setters of narrow integers cut further. */
const low32 = (value: ElementValue): number =>
  typeof value === "bigint" ? Number(BigInt.asIntN(32, value)) : value | 0

/** The truncated value, of which the setters of 64-bit integers keep the low bits. */
const whole = (value: ElementValue): bigint =>
  typeof value === "bigint" ? value : Number.isFinite(value) ? BigInt(Math.trunc(value)) : 0n

const integer = (kind: "Uint16" | "Int16" | "Uint32" | "Int32"): ElementCodec => ({
  read: (view, at) => view[`get${kind}`](at, true),
  write: (view, at, value) => view[`set${kind}`](at, low32(value), true)
})

const bigInteger = (kind: "BigUint64" | "BigInt64"): ElementCodec => ({
  read: (view, at) => view[`get${kind}`](at, true),
  write: (view, at, value) => view[`set${kind}`](at, whole(value), true)
})

const codecs: Partial<Record<DType, ElementCodec>> = {
  bool: {
    read: (view, at) => (view.getUint8(at) === 0 ? 0 : 1),
    write: (view, at, value) =>
      view.setUint8(at, typeof value === "bigint" ? Number(value !== 0n) : Number(value !== 0))
  },
  uint8: { read: (view, at) => view.getUint8(at), write: (view, at, value) => view.setUint8(at, low32(value)) },
  int8: { read: (view, at) => view.getInt8(at), write: (view, at, value) => view.setInt8(at, low32(value)) },
  uint16: integer("Uint16"),
  int16: integer("Int16"),
  uint32: integer("Uint32"),
  int32: integer("Int32"),
  uint64: bigInteger("BigUint64"),
  int64: bigInteger("BigInt64"),
  float16: narrow16(float16),
  bfloat16: narrow16(bfloat16),
  float8_e5m2: narrow8(float8e5m2),
  float8_e4m3fn: narrow8(float8e4m3fn),
  float8_e8m0fnu: {
    read: (view, at) => (view.getUint8(at) === 0xff ? Number.NaN : 2 ** (view.getUint8(at) - 127)),
    write: (view, at, value) => view.setUint8(at, encodeE8m0(toFloat32(value)))
  },
  float32: {
    read: (view, at) => view.getFloat32(at, true),
    write: (view, at, value) => {
      const float = toFloat32(value)
      if (Number.isNaN(float)) view.setUint32(at, 0x7fc00000, true)
      else view.setFloat32(at, float, true)
    }
  },
  float64: {
    read: (view, at) => view.getFloat64(at, true),
    write: (view, at, value) => {
      const float = Number(value)
      if (Number.isNaN(float)) view.setBigUint64(at, 0x7ff8000000000000n, true)
      else view.setFloat64(at, float, true)
    }
  }
}

/** How to read and write elements of a type; `undefined` for types that are only moved as bits. Bytes are little-endian. */
export const elementCodec = (dtype: DType): ElementCodec | undefined => codecs[dtype]
