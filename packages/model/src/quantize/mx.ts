// SPDX-License-Identifier: Apache-2.0
/**
 * Quantizes to MXFP4 or MXFP8 by a named rule: blocks of 32 values along a row, one scale byte each.
 *
 * Invariant: scale and codes of a block depend on its values alone, so any cut between blocks gives the same bytes.
 */
import * as Result from "effect/Result"
import { e2m1Values, toFloats } from "../values/codes.ts"
import { blockCounts, eachBlock, type Matrix, maximaOf, type Place, QuantizeFault } from "./Matrix.ts"
import { type Mxfp4RuleName, mxfp4Rules } from "./mxfp4Rules.ts"
import { type Mxfp8RuleName, mxfp8Rules } from "./mxfp8Rules.ts"
import type { MxRule } from "./mxRule.ts"
import { powerFloat } from "./numbers.ts"

/** Codes and scale bytes. */
export interface QuantizedMx {
  /** MXFP8: one code per element. MXFP4: two codes to a byte, the low half first. */
  readonly data: Uint8Array
  /** The byte s of 2^(s - 127) per row and 32 columns, row-major. */
  readonly scales: Uint8Array
  readonly scaleShape: readonly [rows: number, columns: number]
}

/** What shares a scale in an MX form. */
export const mxBlock = { rows: 1, columns: 32 } as const

/** NaN by its scale, whatever the codes are. */
const undefinedBlock = (step: number) => ({ byte: 255, code: () => (step === 1 ? 0x7f : 0) })

const quantize = (
  matrix: Matrix,
  rule: MxRule,
  step: number,
  { isTotal = false, maxima, origin = [0, 0] }: Place
): Result.Result<QuantizedMx, QuantizeFault> => {
  const { columns, dtype, values } = matrix
  const multiple = rule.shortBlock ? step : mxBlock.columns
  if (columns % multiple !== 0 || origin[1] % step !== 0) {
    const detail = `${rule.name} quantizes columns in multiples of ${multiple}, not ${columns} from column ${origin[1]}`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const scaleShape = blockCounts(matrix, mxBlock, origin)
  const known = maxima ?? maximaOf(matrix, mxBlock, origin)
  if (known.length !== scaleShape[0] * scaleShape[1]) {
    const detail = `${known.length} maxima are given for ${scaleShape[0]}x${scaleShape[1]} blocks`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const codes = new Uint8Array(values.length)
  const scales = new Uint8Array(known.length)
  const fault = eachBlock(matrix, mxBlock, origin, ({ columns: [left, right], index, rows: [row] }) => {
    const made = rule.block(known[index]!, dtype) ?? (isTotal ? undefinedBlock(step) : undefined)
    if (made === undefined) {
      const detail = `${rule.name} leaves a block undefined whose largest magnitude is ${known[index]}`
      return new QuantizeFault({ detail, at: [row, left] })
    }
    scales[index] = made.byte
    for (let at = row * columns + left; at < row * columns + right; at++) codes[at] = made.code(values[at]!)
    return undefined
  })
  return fault === undefined ? Result.succeed({ data: codes, scales, scaleShape }) : Result.fail(fault)
}

/** Two codes to a byte, the low half first. */
const packed = (codes: Uint8Array): Uint8Array =>
  Uint8Array.from({ length: codes.length / 2 }, (_, at) => codes[2 * at]! | (codes[2 * at + 1]! << 4))

/** MXFP8 of a matrix. Columns are a multiple of 32, or any where the rule has a short last block. */
export const quantizeMxfp8 = (matrix: Matrix, name: Mxfp8RuleName, place: Place = {}) =>
  quantize(matrix, mxfp8Rules[name], 1, place)

/** MXFP4 of a matrix. Columns are a multiple of 32, or even where the rule has a short last block. */
export const quantizeMxfp4 = (matrix: Matrix, name: Mxfp4RuleName, place: Place = {}) =>
  Result.map(quantize(matrix, mxfp4Rules[name], 2, place), (made) => ({ ...made, data: packed(made.data) }))

const read = (numbers: Float32Array, { scaleShape: [rows, across], scales }: QuantizedMx): Float32Array => {
  const columns = rows === 0 ? 0 : numbers.length / rows
  return numbers.map((number, at) => {
    const byte = scales[Math.floor(at / columns) * across + Math.floor((at % columns) / mxBlock.columns)]!
    return number * powerFloat(byte - 127)
  })
}

/** The values that codes of MXFP8 stand for: numbers times 2^(s - 127). */
export const readMxfp8 = (made: QuantizedMx): Float32Array => read(toFloats("float8_e4m3fn", made.data), made)

/** The values that codes of MXFP4 stand for: numbers times 2^(s - 127). */
export const readMxfp4 = (made: QuantizedMx): Float32Array =>
  read(
    Float32Array.from({ length: 2 * made.data.length }, (_, at) => {
      const byte = made.data[at >> 1]!
      return e2m1Values[at % 2 === 0 ? byte & 15 : byte >> 4]!
    }),
    made
  )
