// SPDX-License-Identifier: Apache-2.0
/**
 * The bits of MXFP8: what `TensorEngine.quantize` and `dequantize` must give on every device.
 *
 * A block of 32 elements shares one power of two, a scale byte s for 2^(s - 127). Elements are multiplied by 2^(127 - s) in
 * float32 and rounded to float8_e4m3fn, saturating at 448. The rules differ only in the scale:
 * - `ocp_floor`: the exponent of the largest magnitude, less 8, the exponent of 448.
 * - `rceil`: the largest magnitude times float32(1/448), rounded up to a power of two.
 * - `rceil_te`: as `rceil`, but an infinite block has scale 254, and with scale 0 elements are multiplied by 1.
 * A block with a NaN (and, except under `rceil_te`, one with an infinity) has scale 255 and NaN in every element.
 */
import { mxBlockSize, type ScaleRule } from "@tensorferry/core/tensor/QuantizedTensor"
import { elementCodec } from "./casts.ts"

const nanScale = 255
const nanElement = 0x7f
const reciprocalOfLargest = Math.fround(1 / 448)
const e4m3 = elementCodec("float8_e4m3fn")!
const word = new DataView(new ArrayBuffer(4))

const float32Bits = (value: number): number => {
  word.setFloat32(0, value, true)
  return word.getUint32(0, true)
}

/** Rounded up to a power of two, as an exponent byte. */
const ceilingExponent = (value: number): number => {
  const bits = float32Bits(value)
  const exponent = bits >>> 23
  const mantissa = bits & 0x7fffff
  return exponent === 0 ? Number(mantissa > 0x400000) : exponent + Number(mantissa !== 0)
}

/** The scale byte of a block by its largest magnitude, a float32; NaN where any element is. */
export const scaleOf = (largest: number, rule: ScaleRule): number => {
  if (Number.isNaN(largest)) return nanScale
  if (rule === "rceil_te") {
    const scaled = Math.fround(largest * reciprocalOfLargest)
    return scaled === Number.POSITIVE_INFINITY ? 254 : Math.min(ceilingExponent(scaled), 254)
  }
  if (largest === Number.POSITIVE_INFINITY) return nanScale
  if (rule === "rceil") return ceilingExponent(Math.fround(largest * reciprocalOfLargest))
  return Math.max((float32Bits(largest) >>> 23) - 8, 0)
}

/** What the elements of a block are multiplied by. */
export const multiplierOf = (scale: number, rule: ScaleRule): number =>
  rule === "rceil_te" && scale === 0 ? 1 : 2 ** (127 - scale)

/** One block of float32 values; writes their bytes and returns the scale byte. */
export const quantizeBlock = (values: Float32Array, rule: ScaleRule, data: Uint8Array): number => {
  let largest = 0
  for (const value of values) {
    const magnitude = Math.abs(value)
    if (magnitude > largest || Number.isNaN(magnitude)) largest = magnitude
    if (Number.isNaN(largest)) break
  }
  const scale = scaleOf(largest, rule)
  if (scale === nanScale) {
    data.fill(nanElement)
    return scale
  }
  const multiplier = multiplierOf(scale, rule)
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength)
  for (let at = 0; at < mxBlockSize; at++) e4m3.write(view, at, Math.fround(values[at]! * multiplier))
  return scale
}

/** The float32 value of an element. */
export const dequantizeElement = (byte: number, scale: number): number => {
  if (scale === nanScale) return Number.NaN
  word.setUint8(0, byte)
  return Math.fround(Number(e4m3.read(word, 0)) * 2 ** (scale - 127))
}
