// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which block-scaled conversions cross into an addon: 64-bit words, one table per call.
 *
 * Words: 0 to quantize or 1 to dequantize, rule, plain type, dimensions; addresses of the plain tensor, of data and of
 * scales; the shape; the three tensors' strides in elements. Only checked tensors are encoded.
 */
import { dtypes } from "@tensorferry/core/base/DType"
import { type QuantizedTensor, scaleRules } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { TableWriter } from "./MoveTable.ts"

/** The table of one conversion; `addressOf` gives the address of a tensor's first element. */
export const encodeQuantize = (
  op: "quantize" | "dequantize",
  plain: Tensor,
  { data, scale, recipe }: QuantizedTensor,
  addressOf: (tensor: Tensor) => number
): BigUint64Array => {
  const dimensions = plain.shape.length
  const writer = new TableWriter(7 + 4 * dimensions)
  writer.putAll([
    op === "quantize" ? 0 : 1,
    scaleRules.indexOf(recipe.rule),
    dtypes.indexOf(plain.dtype),
    dimensions,
    addressOf(plain),
    addressOf(data),
    addressOf(scale)
  ])
  writer.putAll(plain.shape)
  for (const tensor of [plain, data, scale]) writer.putAll(tensor.strides)
  return writer.table
}
