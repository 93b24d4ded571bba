// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which conversions to and from quantized forms cross into an addon: 64-bit words, one table per call.
 * Only checked tensors are encoded.
 *
 * Words, in this order:
 * - 0 to quantize, 1 to dequantize, 2 to find largest magnitudes; the rule by its number over all forms (`ruleNumberOf`; 0
 *   for largest magnitudes); the type of the plain tensor; its dimensions;
 * - rows and columns of a block, 0 for all; row and column at which the tensor begins within its first block;
 * - the type of the scales; flags: 1 maxima are given, 2 the global scale is read instead of written, 4 one maximum for all;
 * - addresses of the plain tensor, codes, scales, global scale and maxima, 0 for what there is none;
 * - the plain shape; strides in elements of the plain tensor, codes, scales and maxima, 0 for what there is none. Codes of
 *   four bits are elements of uint8, two columns each.
 */
import { dtypes } from "@tensorferry/core/base/DType"
import type { KnownScales } from "@tensorferry/core/service/TensorEngine"
import { type BlockSize, hasGlobal, type QuantizedTensor, ruleNumberOf } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { TableWriter } from "./MoveTable.ts"

/** Words before shape and strides. */
const headWords = 15
/** Shape and four strides. */
const wordsPerDimension = 5

type AddressOf = (tensor: Tensor) => number

const encode = (
  head: ReadonlyArray<number>,
  plain: Tensor,
  others: ReadonlyArray<Tensor | undefined>,
  ownMaxima: Tensor | undefined
): BigUint64Array => {
  const dimensions = plain.shape.length
  const writer = new TableWriter(headWords + wordsPerDimension * dimensions)
  writer.putAll(head)
  writer.putAll(plain.shape)
  const nothing = plain.shape.map(() => 0)
  for (const tensor of [plain, ...others, ownMaxima]) writer.putAll(tensor?.strides ?? nothing)
  return writer.table
}

/** The table of one conversion; `addressOf` gives the address of a tensor's first element. */
export const encodeQuantize = (
  op: "quantize" | "dequantize",
  plain: Tensor,
  { data, global, recipe, scale }: QuantizedTensor,
  addressOf: AddressOf,
  { keepsGlobal = false, maxima, origin = [0, 0] }: KnownScales = {}
): BigUint64Array => {
  const isOne = maxima !== undefined && hasGlobal(recipe)
  const head = [
    op === "quantize" ? 0 : 1,
    ruleNumberOf(recipe),
    dtypes.indexOf(plain.dtype),
    plain.shape.length,
    ...recipe.block,
    ...origin,
    dtypes.indexOf(scale.dtype),
    (maxima === undefined ? 0 : 1) + (keepsGlobal ? 2 : 0) + (isOne ? 4 : 0),
    addressOf(plain),
    addressOf(data),
    addressOf(scale),
    global === undefined ? 0 : addressOf(global),
    maxima === undefined ? 0 : addressOf(maxima)
  ]
  return encode(head, plain, [data, scale], isOne ? undefined : maxima)
}

/** The table of one search for largest magnitudes. */
export const encodeLargest = (
  source: Tensor,
  maxima: Tensor,
  block: BlockSize,
  origin: readonly [number, number],
  isOne: boolean,
  addressOf: AddressOf
): BigUint64Array => {
  const head = [
    ...[2, 0, dtypes.indexOf(source.dtype), source.shape.length],
    ...block,
    ...origin,
    ...[dtypes.indexOf("float32"), 1 + (isOne ? 4 : 0)],
    ...[addressOf(source), 0, 0, 0, addressOf(maxima)]
  ]
  return encode(head, source, [undefined, undefined], isOne ? undefined : maxima)
}
