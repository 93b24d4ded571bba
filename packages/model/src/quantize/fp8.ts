// SPDX-License-Identifier: Apache-2.0
/**
 * Quantizes to float8_e4m3fn with one scale per block, row or tensor, by a named rule.
 *
 * Invariant: a code depends on its value, the maximum of its block and the rule alone. Any rectangle of a matrix gets the
 * codes and scales that it has in the whole, where the maxima of the blocks it touches are given.
 */
import * as Result from "effect/Result"
import { type Fp8RuleName, fp8Rules } from "./fp8Rules.ts"
import { type Block, blockCounts, eachBlock, type Matrix, maximaOf, type Place, QuantizeFault } from "./Matrix.ts"
import { bitsOfFloat, e4m3Code } from "./numbers.ts"

/** Codes and scales. A value is its code's times its scale. */
export interface QuantizedFp8 {
  /** One code per element, row-major. */
  readonly data: Uint8Array
  /** One per block, row-major; exact in the type that the rule states. */
  readonly scales: Float32Array
  readonly scaleShape: readonly [rows: number, columns: number]
}

/**
 * Codes and scales of a matrix. Edge blocks are smaller; a rule whose reference leaves such weights alone refuses them.
 */
export const quantizeFp8 = (
  matrix: Matrix,
  block: Block,
  name: Fp8RuleName,
  { maxima, origin = [0, 0] }: Place = {}
): Result.Result<QuantizedFp8, QuantizeFault> => {
  const rule = fp8Rules[name]
  const { columns, dtype, rows, values } = matrix
  const cuts = (length: number, size: number, at: number) =>
    size !== Number.POSITIVE_INFINITY && (length % size !== 0 || at % size !== 0)
  if (rule.wholeBlocks && (cuts(rows, block.rows, origin[0]) || cuts(columns, block.columns, origin[1]))) {
    const detail = `${name} quantizes whole blocks of ${block.rows}x${block.columns} only, not ${rows}x${columns}`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const scaleShape = blockCounts(matrix, block, origin)
  const known = maxima ?? maximaOf(matrix, block, origin)
  if (known.length !== scaleShape[0] * scaleShape[1]) {
    const detail = `${known.length} maxima are given for ${scaleShape[0]}x${scaleShape[1]} blocks`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const data = new Uint8Array(rows * columns)
  const scales = new Float32Array(known.length)
  eachBlock(matrix, block, origin, ({ columns: [left, right], index, rows: [top, bottom] }) => {
    const { scale, unit } = rule.scaling(known[index]!, dtype)
    scales[index] = scale
    for (let row = top; row < bottom; row++) {
      for (let at = row * columns + left; at < row * columns + right; at++) data[at] = e4m3Code(unit(values[at]!))
    }
    return undefined
  })
  return Result.succeed({ data, scales, scaleShape })
}

/**
 * Scales as the bytes of float8_e8m0fnu; undefined where a finite one is no power of two from 2^-127 to 2^127. Infinity
 * has no byte and becomes NaN, as in PyTorch.
 */
export const powerBytes = (scales: Float32Array): Uint8Array | undefined => {
  const bytes = new Uint8Array(scales.length)
  for (let at = 0; at < scales.length; at++) {
    const bits = bitsOfFloat(scales[at]!)
    const byte = bits >>> 23
    if (!Number.isFinite(scales[at]!)) bytes[at] = 255
    else if (bits === 0x400000) bytes[at] = 0
    else if ((bits & 0x7fffff) !== 0 || byte === 0) return undefined
    else bytes[at] = byte
  }
  return bytes
}
