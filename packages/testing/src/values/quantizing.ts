// SPDX-License-Identifier: Apache-2.0
/**
 * The bits of quantized forms: what `TensorEngine.quantize`, `dequantize` and `largest` must give on every device, as
 * functions over dense memory.
 *
 * The rules are those of `@tensorferry/model/quantize`, which are held against recordings of the code that they are named
 * after. Here they get the shape of engines: matrices one after the other, scales in the type of a tensor, and no faults: an
 * element that the rule's reference has no code for gets code 0 under a scale that says NaN.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import {
  type BlockSize,
  codesPerByte,
  hasGlobal,
  type QuantizationRecipe,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { type Block, largerOf, type Matrix, maximaOf, maximumOf } from "@tensorferry/model/quantize/Matrix"
import { bitsOfFloat, e4m3Values, floatOfBits, type SourceType } from "@tensorferry/model/quantize/numbers"
import { type Nvfp4RuleName, nvfp4Rules } from "@tensorferry/model/quantize/nvfp4Rules"
import { type RulePlace, ruleOf } from "@tensorferry/model/quantize/rules"
import * as Result from "effect/Result"
import { elementCodec } from "./casts.ts"

const e2m1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6]

/** What is known of scales, as values: see `KnownScales` of the engine. */
export interface KnownValues {
  readonly origin?: readonly [row: number, column: number]
  /** Row-major, one per block; under a global scale one for all. */
  readonly maxima?: Float32Array
  /** A stored global scale that is kept. */
  readonly global?: number
}

/** Dense codes and scales, each in the type of its tensor. */
export interface QuantizedBytes {
  readonly data: Uint8Array
  readonly scales: Uint8Array
  readonly global?: number
}

const blockOf = ([rows, columns]: BlockSize): Block => ({
  rows: rows === 0 ? Number.POSITIVE_INFINITY : rows,
  columns: columns === 0 ? Number.POSITIVE_INFINITY : columns
})

/** The matrices of a tensor: its last two dimensions, as often as the others say. */
const matricesOf = (values: Float32Array, shape: Shape, dtype: SourceType): ReadonlyArray<Matrix> => {
  const [rows, columns] = [shape.length < 2 ? 1 : shape.at(-2)!, shape.at(-1)!]
  const size = rows * columns
  return Array.from({ length: elementCount(shape.slice(0, -2)) }, (_, at) => ({
    values: values.subarray(at * size, (at + 1) * size),
    rows,
    columns,
    dtype
  }))
}

/** A byte of float8_e8m0fnu; NaN for what is no power of two from 2^-127 to 2^127. */
const powerByte = (scale: number): number => {
  const bits = bitsOfFloat(scale)
  if (bits === 0x400000) return 0
  const byte = bits >>> 23
  return (bits & 0x7fffff) !== 0 || byte === 0 || byte > 254 ? 255 : byte
}

const powerOf = (byte: number): number =>
  byte === 255 ? Number.NaN : byte === 0 ? floatOfBits(0x400000) : floatOfBits(byte << 23)

const writeScales = (scales: Float32Array | Uint8Array, dtype: DType): Uint8Array => {
  if (scales instanceof Uint8Array) return scales
  if (dtype === "float8_e8m0fnu") return Uint8Array.from(scales, powerByte)
  const size = bitsOf(dtype) / 8
  const bytes = new Uint8Array(scales.length * size)
  const view = new DataView(bytes.buffer)
  const codec = elementCodec(dtype)!
  for (const [at, scale] of scales.entries()) codec.write(view, at * size, scale)
  return bytes
}

const readScales = ({ name }: QuantizationRecipe, bytes: Uint8Array, dtype: DType): Float64Array => {
  if (name === "nvfp4") return Float64Array.from(bytes, (byte) => e4m3Values[byte]!)
  if (name !== "fp8" || dtype === "float8_e8m0fnu") return Float64Array.from(bytes, powerOf)
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const [codec, size] = [elementCodec(dtype)!, bitsOf(dtype) / 8]
  return Float64Array.from({ length: bytes.length / size }, (_, at) => Number(codec.read(view, at * size)))
}

const joined = (pieces: ReadonlyArray<Uint8Array>): Uint8Array => {
  const bytes = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const piece of pieces) {
    bytes.set(piece, at)
    at += piece.length
  }
  return bytes
}

/** The largest magnitude of all values of a tensor. */
const overall = (matrices: ReadonlyArray<Matrix>): number =>
  matrices.reduce((largest, matrix) => largerOf(largest, maximumOf(matrix)), 0)

/** Dense codes and scales of dense values, which are exact in `dtype`. */
export const quantizeValues = (
  recipe: QuantizationRecipe,
  values: Float32Array,
  shape: Shape,
  dtype: SourceType,
  scaleType: DType,
  known: KnownValues = {}
): QuantizedBytes => {
  const { quantize } = Result.getOrThrow(ruleOf(`${recipe.name}/${recipe.rule}`))
  const matrices = matricesOf(values, shape, dtype)
  const isOne = hasGlobal(recipe)
  const amax = isOne ? (known.maxima?.[0] ?? overall(matrices)) : 0
  const perMatrix = isOne ? 0 : (known.maxima?.length ?? 0) / matrices.length
  const parts = matrices.map((matrix, at) => {
    const place: RulePlace = {
      isTotal: true,
      block: blockOf(recipe.block),
      ...(known.origin === undefined ? {} : { origin: known.origin }),
      ...(isOne ? (known.global === undefined ? { amax } : { global: known.global }) : {}),
      ...(isOne || known.maxima === undefined
        ? {}
        : { maxima: known.maxima.subarray(at * perMatrix, (at + 1) * perMatrix) })
    }
    return Result.getOrThrow(quantize(matrix, place))
  })
  const global = parts[0]?.global
  return {
    data: joined(parts.map(({ data }) => data)),
    scales: joined(parts.map(({ scales }) => writeScales(scales, scaleType))),
    ...(global === undefined ? {} : { global })
  }
}

/** The values, in float32, that dense codes and scales of a tensor of this shape stand for. */
export const readValues = (
  recipe: QuantizationRecipe,
  { data, global = 1, scales: stored }: QuantizedBytes,
  shape: Shape,
  scaleType: DType,
  [row, column]: readonly [number, number] = [0, 0]
): Float32Array => {
  const values = new Float32Array(elementCount(shape))
  if (values.length === 0) return values
  const across = scaleShapeOf(recipe, shape, [row, column])!
  const [rows, columns] = [shape.length < 2 ? 1 : shape.at(-2)!, shape.at(-1)!]
  const [down, along] = [across.length < 2 ? 1 : across.at(-2)!, across.at(-1)!]
  const [high, wide] = recipe.block
  const isHalf = codesPerByte(recipe) === 2
  const scales = readScales(recipe, stored, scaleType)
  const { read } = recipe.name === "nvfp4" ? nvfp4Rules[recipe.rule as Nvfp4RuleName] : { read: undefined }
  for (let at = 0; at < values.length; at++) {
    const matrix = Math.floor(at / (rows * columns))
    const [y, x] = [Math.floor((at % (rows * columns)) / columns), at % columns]
    const block =
      (high === 0 ? 0 : Math.floor((y + row) / high)) * along + (wide === 0 ? 0 : Math.floor((x + column) / wide))
    const scale = scales[matrix * down * along + block]!
    const byte = data[isHalf ? at >> 1 : at]!
    const number = isHalf ? e2m1[at % 2 === 0 ? byte & 15 : byte >> 4]! : e4m3Values[byte]!
    values[at] = read === undefined ? number * scale : read(number, scale, global)
  }
  return values
}

/** The largest magnitude of each block, or of all, joined with those that were found before. */
export const largestValues = (
  values: Float32Array,
  shape: Shape,
  block: BlockSize,
  before: Float32Array,
  isOne: boolean,
  origin: readonly [number, number] = [0, 0]
): Float32Array => {
  const matrices = matricesOf(values, shape, "float32")
  const found = isOne
    ? Float32Array.of(overall(matrices))
    : Float32Array.from(matrices.flatMap((matrix) => [...maximaOf(matrix, blockOf(block), origin)]))
  return before.map((value, at) => largerOf(value, found[at]!))
}
