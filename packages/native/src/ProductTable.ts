// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which the addition of a product crosses into an addon: 18 words. Only checked tensors are encoded.
 *
 * Words: types of the destination and of the factors; rows, columns, rank; the bits of the float32 scale; addresses of the
 * destination, the base, `b` and `a`; of each of these in turn, elements between rows and between columns.
 */
import { dtypes } from "@tensorferry/core/base/DType"
import type { LowRankProduct } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { addressOf, TableWriter } from "./MoveTable.ts"

/** The table of one addition. */
export const encodeProduct = (destination: Tensor, base: Tensor, { a, b, scale }: LowRankProduct): BigUint64Array => {
  const writer = new TableWriter(18)
  const all = [destination, base, b, a]
  writer.putAll([dtypes.indexOf(destination.dtype), dtypes.indexOf(a.dtype)])
  writer.putAll([destination.shape[0]!, destination.shape[1]!, a.shape[0]!])
  writer.put(new Uint32Array(Float32Array.of(scale).buffer)[0]!)
  writer.putAll(all.map(addressOf))
  for (const { strides } of all) writer.putAll(strides)
  return writer.table
}
