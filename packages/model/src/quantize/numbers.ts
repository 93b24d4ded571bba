// SPDX-License-Identifier: Apache-2.0
/**
 * The numbers that quantizers round to, one at a time: float32 by its bits, bfloat16, float16, float8_e4m3fn, float4_e2m1
 * and powers of two by their byte.
 *
 * Invariant: each function rounds once. Whoever needs two roundings, as a reference makes them, calls two functions.
 */
import { toFloats } from "../values/codes.ts"

/** Types that weights have before they are quantized. */
export const sourceTypes = ["float32", "bfloat16", "float16"] as const
/** One of them. */
export type SourceType = (typeof sourceTypes)[number]

/** The largest finite float32. */
export const largestFloat32 = (2 - 2 ** -23) * 2 ** 127

const word = new Float32Array(1)
const wordBits = new Uint32Array(word.buffer)

/** The bit pattern of a number as float32. */
export const bitsOfFloat = (value: number): number => {
  word[0] = value
  return wordBits[0]!
}

/** The float32 of a bit pattern. */
export const floatOfBits = (bits: number): number => {
  wordBits[0] = bits
  return word[0]!
}

/** A magnitude below 2^51 to the nearest whole number, ties to even. */
const nearestEven = (magnitude: number): number => magnitude + 2 ** 52 - 2 ** 52

const isNegative = (value: number): boolean => bitsOfFloat(value) >>> 31 === 1

const toBfloat = (value: number): number => {
  if (!Number.isFinite(value)) return value
  const bits = bitsOfFloat(value)
  return floatOfBits((bits + 0x7fff + ((bits >>> 16) & 1)) & 0xffff0000)
}

const toHalf = (value: number): number => {
  if (Number.isNaN(value)) return value
  const magnitude = Math.abs(value)
  const step = 2 ** (Math.max((bitsOfFloat(magnitude) >>> 23) - 127, -14) - 10)
  const rounded = magnitude >= 65_520 ? Number.POSITIVE_INFINITY : nearestEven(magnitude / step) * step
  return isNegative(value) ? -rounded : rounded
}

/** Rounds a float32 to a source type: what one operation in that type gives after its float32 arithmetic. */
export const roundingOf: Readonly<Record<SourceType, (value: number) => number>> = {
  float32: Math.fround,
  bfloat16: toBfloat,
  float16: toHalf
}

/** The distance from 1 to the next number of a type. */
export const epsilonOf: Readonly<Record<SourceType, number>> = {
  float32: 2 ** -23,
  bfloat16: 2 ** -7,
  float16: 2 ** -10
}

/** The smallest normal number of a type. */
export const tiniestOf: Readonly<Record<SourceType, number>> = {
  float32: 2 ** -126,
  bfloat16: 2 ** -126,
  float16: 2 ** -14
}

/** The largest finite number of a type. */
export const largestOf: Readonly<Record<SourceType, number>> = {
  float32: largestFloat32,
  bfloat16: (2 - 2 ** -7) * 2 ** 127,
  float16: 65_504
}

/** The code of float8_e4m3fn, to nearest even, saturating at 448; NaN has 0x7f. */
export const e4m3Code = (value: number): number => {
  if (Number.isNaN(value)) return 0x7f
  const bits = bitsOfFloat(value)
  const sign = (bits >>> 24) & 0x80
  const magnitude = Math.abs(value)
  if (magnitude >= 448) return sign | 0x7e
  // Subnormal numbers are multiples of 2^-9. The largest of them rounds into the first normal one by itself.
  if (magnitude < 2 ** -6) return sign | nearestEven(magnitude * 512)
  const positive = bits & 0x7fffffff
  return sign | (((positive + 0x7ffff + ((positive >>> 20) & 1)) >>> 20) - 960)
}

/** The values of float8_e4m3fn by their code. */
export const e4m3Values: Float32Array = toFloats(
  "float8_e4m3fn",
  Uint8Array.from({ length: 256 }, (_, code) => code)
)

/** What becomes of a value in the middle of two numbers of float4_e2m1. */
export type Ties = "even" | "down" | "up"

const middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5] as const

/** The code 0 to 7 of float4_e2m1 for a magnitude, saturating at 6; NaN has 7. */
export const e2m1Code = (magnitude: number, ties: Ties): number => {
  if (Number.isNaN(magnitude)) return 7
  let code = 0
  while (code < 7 && magnitude > middles[code]!) code++
  if (magnitude !== middles[code]) return code
  return ties === "up" || (ties === "even" && code % 2 === 1) ? code + 1 : code
}

/**
 * The base-2 logarithm rounded to float32. A float32 logarithm of PyTorch may differ in its last bit, but has the same whole
 * number above it, which is what rules take of it.
 */
export const log2Float = (value: number): number => {
  const bits = bitsOfFloat(value)
  const exponent = (bits >>> 23) & 0xff
  return (bits & 0x7fffff) === 0 && value > 0 && exponent > 0 && exponent < 255
    ? exponent - 127
    : Math.fround(Math.log2(value))
}

/** A power of two with any whole exponent as float32: zero, subnormal or infinite beyond its range. */
export const powerFloat = (exponent: number): number => Math.fround(2 ** exponent)

/** The exponent byte of a float32 raised to the next power of two by its bits; 255 and 256 stand for what is not finite. */
export const raisedByte = (value: number): number => {
  const bits = bitsOfFloat(value)
  return ((bits >>> 23) & 0xff) + Number((bits & 0x7fffff) !== 0)
}

/** The exponent byte of a float32: that of the power of two below. */
export const exponentByte = (value: number): number => (bitsOfFloat(value) >>> 23) & 0xff
