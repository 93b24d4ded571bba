// SPDX-License-Identifier: Apache-2.0
/**
 * Changes of form from codes to codes. Each value stays what it is, or the change is refused with the place of the first
 * value that could not stay.
 *
 * Invariant: nothing is rounded. Where the named reference is exact the bytes are its bytes. The sign of a zero may be
 * lost, as the references lose it: the code of minus zero becomes that of zero.
 */
import * as Result from "effect/Result"
import { e2m1Values } from "../values/codes.ts"
import { blockCounts, eachBlock, QuantizeFault } from "./Matrix.ts"
import type { QuantizedMx } from "./mx.ts"
import { e2m1Code, e4m3Code, powerFloat } from "./numbers.ts"
import type { QuantizedNvfp4 } from "./nvfp4.ts"
import { readNvfp4 } from "./nvfp4.ts"

type Recast<A> = Result.Result<A, QuantizeFault>

const refuse = (detail: string, at?: readonly [number, number]): Recast<never> =>
  Result.fail(new QuantizeFault(at === undefined ? { detail } : { detail, at }))

const codeAt = (data: Uint8Array, at: number): number => (at % 2 === 0 ? data[at >> 1]! & 15 : data[at >> 1]! >> 4)

/** A number of float4_e2m1 other than zero as an odd number, 1 or 3, times a power of two. */
const oddAndExponent = (code: number): readonly [odd: number, exponent: number] => {
  const magnitude = code & 7
  return magnitude < 3 || magnitude % 2 === 0 ? [1, [0, -1, 0, 0, 1, 0, 2][magnitude]!] : [3, (magnitude - 5) / 2]
}

/** Blocks of FP8 with power-of-two scales. */
export interface PowerFp8 {
  readonly data: Uint8Array
  /** The byte s of 2^(s - 127) per block, row-major. */
  readonly scales: Uint8Array
  readonly scaleShape: readonly [rows: number, columns: number]
}

/**
 * MXFP4 as FP8 in blocks of 128x128 with power-of-two scales: SGLang's cast_e2m1fn_to_e4m3fn, which takes the largest scale
 * of a block over 2^6. Where another scale is exact and that one is not, the nearest exact one is taken.
 */
export const mxfp4ToFp8Block = (source: QuantizedMx): Recast<PowerFp8> => {
  const [rows, across] = source.scaleShape
  const columns = 32 * across
  const block = { rows: 128, columns: 128 }
  if (rows % 128 !== 0 || columns % 128 !== 0) return refuse(`${rows}x${columns} is no whole number of 128x128 blocks`)
  const scaleShape = blockCounts({ rows, columns }, block)
  const data = new Uint8Array(rows * columns)
  const scales = new Uint8Array(scaleShape[0] * scaleShape[1])
  const fault = eachBlock(
    { rows, columns },
    block,
    [0, 0],
    ({ columns: [left, right], index, rows: [top, bottom] }) => {
      let [low, high, largest] = [0, 254, 0]
      for (let row = top; row < bottom; row++) {
        for (let column = left; column < right; column++) {
          const byte = source.scales[row * across + (column >> 5)]!
          const code = codeAt(source.data, row * columns + column)
          largest = Math.max(largest, byte)
          if (byte === 255) return new QuantizeFault({ detail: "a scale of the block is NaN", at: [row, column] })
          if ((code & 7) === 0) continue
          // float8_e4m3fn has 1 * 2^-9 to 1 * 2^8, and 3 * 2^-9 to 3 * 2^7.
          const [odd, exponent] = oddAndExponent(code)
          low = Math.max(low, byte + exponent - (odd === 1 ? 8 : 7))
          high = Math.min(high, byte + exponent + 9)
          if (low > high) {
            const detail = "no power of two makes every value of its 128x128 block a number of float8_e4m3fn"
            return new QuantizeFault({ detail, at: [row, column] })
          }
        }
      }
      const scale = Math.min(Math.max(largest - 6, low), high)
      scales[index] = scale
      for (let row = top; row < bottom; row++) {
        for (let column = left; column < right; column++) {
          const at = row * columns + column
          const byte = source.scales[row * across + (column >> 5)]!
          // Zero loses its sign, and no power beside it is infinite.
          const number = e2m1Values[codeAt(source.data, at)]!
          data[at] = number === 0 ? 0 : e4m3Code(number * 2 ** (byte - scale))
        }
      }
      return undefined
    }
  )
  return fault === undefined ? Result.succeed({ data, scales, scaleShape }) : Result.fail(fault)
}

/**
 * MXFP4 as ModelOpt's NVFP4: the global scale is 2^-8 of the largest scale, groups take what is left, and codes stay. A group
 * too small for that takes 2^-9 and other codes, where they are exact.
 */
export const mxfp4ToNvfp4 = (source: QuantizedMx): Recast<QuantizedNvfp4> => {
  const [rows, across] = source.scaleShape
  const columns = 32 * across
  // Byte 0 marks a block of zeros and does not count, unless there is nothing else.
  const largest = source.scales.reduce((most, byte) => Math.max(most, byte), 0)
  const power = (largest === 0 ? 0 : largest - 127) - 8
  const scales = new Uint8Array(2 * rows * across)
  const data = new Uint8Array(source.data.length)
  for (let group = 0; group < scales.length; group++) {
    const [row, column] = [Math.floor(group / (2 * across)), 16 * (group % (2 * across))]
    const byte = source.scales[group >> 1]!
    if (byte === 255) return refuse("the scale of a block is NaN", [row, column])
    const rest = byte - 127 - power
    const codes = Array.from({ length: 16 }, (_, at) => codeAt(source.data, 16 * group + at))
    const isZero = codes.every((code) => (code & 7) === 0)
    const exponent = Math.max(rest, -9)
    scales[group] = rest < -9 && largest > 0 && isZero ? 0x7e : e4m3Code(2 ** exponent)
    for (let at = 0; at < 16; at++) {
      const number = e2m1Values[codes[at]!]! * 2 ** (rest - exponent)
      const code = e2m1Code(Math.abs(number), "even")
      if (e2m1Values[code] !== Math.abs(number)) {
        const detail = `the scale 2^${byte - 127} is too far below the largest, 2^${power + 8}`
        return refuse(detail, [row, column + at])
      }
      const place = 16 * group + at
      data[place >> 1]! |= (number < 0 ? code | 8 : code) << (place % 2 === 0 ? 0 : 4)
    }
  }
  return Result.succeed({ data, scales, scaleShape: [rows, columns / 16], global: powerFloat(power) })
}

/**
 * FP8 in blocks with power-of-two scales as MXFP8: codes stay, and each row of 32 has the scale of its block. Miles
 * convert_hf_to_mxfp8.
 */
export const fp8BlockToMxfp8 = (
  { data, scaleShape, scales }: PowerFp8,
  [rows, columns]: readonly [number, number],
  block: { readonly rows: number; readonly columns: number }
): Recast<QuantizedMx> => {
  if (columns % 32 !== 0 || block.columns % 32 !== 0) {
    return refuse(`${columns} columns in blocks of ${block.columns} are no whole number of groups of 32`)
  }
  const across = columns / 32
  const repeated = Uint8Array.from({ length: rows * across }, (_, at) => {
    const [row, column] = [Math.floor(at / across), 32 * (at % across)]
    return scales[Math.floor(row / block.rows) * scaleShape[1] + Math.floor(column / block.columns)]!
  })
  return Result.succeed({ data, scales: repeated, scaleShape: [rows, across] })
}

/**
 * NVFP4 of ModelOpt as that of compressed-tensors: codes and group scales stay, and the global scale is inverted. Refused
 * where a value would not stay, since few numbers have an exact inverse.
 */
export const nvfp4ModeloptToCompressedTensors = (source: QuantizedNvfp4): Recast<QuantizedNvfp4> => {
  const made = { ...source, global: Math.fround(1 / source.global) }
  const [before, after] = [readNvfp4(source, "modelopt"), readNvfp4(made, "compressed_tensors")]
  const wrong = before.findIndex(
    (value, at) => value !== after[at] && !(Number.isNaN(value) && Number.isNaN(after[at]))
  )
  if (wrong < 0) return Result.succeed(made)
  const columns = before.length / source.scaleShape[0]
  const detail = `${before[wrong]} would become ${after[wrong]}: the inverse of the global scale is not exact`
  return refuse(detail, [Math.floor(wrong / columns), wrong % columns])
}
