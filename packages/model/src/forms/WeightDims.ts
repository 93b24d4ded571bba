// SPDX-License-Identifier: Apache-2.0
/** What a form is found from: the dimensions of a weight, its tensors, and what the config says of them. */
import type { Dim } from "../structure/Family.ts"
import type { StoredTensor } from "./Form.ts"
import type { QuantizationConfig } from "./QuantizationConfig.ts"

/** Where the outputs and inputs of a weight lie among its dimensions. */
export interface WeightDims {
  readonly dims: ReadonlyArray<Dim>
  readonly out: number | undefined
  readonly in: number | undefined
}

/** Which dimensions of a stored weight are experts, outputs and inputs, from their names. */
export const weightDims = (dims: ReadonlyArray<Dim>): WeightDims => {
  const at = (is: Dim["is"]): number | undefined => {
    const found = dims.findIndex((dim) => dim.is === is)
    return found < 0 ? undefined : found
  }
  return { dims, out: at("out"), in: at("in") }
}

/** What a form is found from. */
export interface FormInput {
  readonly weight: WeightDims
  readonly tensors: ReadonlyArray<StoredTensor>
  readonly quantization: QuantizationConfig | undefined
  /** Inputs that the config states of the weight: what is stored may say only how many at most. */
  readonly inputs?: number | undefined
}
