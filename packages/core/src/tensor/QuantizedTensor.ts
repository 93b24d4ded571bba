/**
 * A tensor stored as narrow data with scales. The recipe names how the two make a value.
 */
import type { Tensor } from "./Tensor.ts"

/** Block scaling along the last dimension: `value = data * 2^(scale - 127)` for one scale byte per `blockSize` elements. */
export interface QuantizationRecipe {
  readonly name: "mxfp8"
  readonly blockSize: 32
  readonly rule: "ocp_floor" | "rceil" | "rceil_te"
}

export interface QuantizedTensor {
  readonly _tag: "QuantizedTensor"
  /** Shape of the logical tensor, `float8_e4m3fn`. */
  readonly data: Tensor
  /** Shape of the logical tensor with the last dimension divided by the block size, `float8_e8m0fnu`. */
  readonly scale: Tensor
  readonly recipe: QuantizationRecipe
}

export const isQuantized = (value: Tensor | QuantizedTensor): value is QuantizedTensor => "_tag" in value
