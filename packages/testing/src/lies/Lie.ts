// SPDX-License-Identifier: Apache-2.0
/** What a lie is: a subject made dishonest in one way, and the conformance case that must find it out. */
import { bitsOf } from "@tensorferry/core/base/DType"
import type { CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"

/** A subject that breaks its contract in one way, and the case that must find it. */
export interface Lie<Shape> {
  /** Names the fault in reports. */
  readonly name: string
  /** The conformance case that fails. */
  readonly caughtBy: string
  /** The service with the fault built in. */
  readonly tell: (honest: Shape) => Shape
}

/** A lie that a copy driver tells. */
export type DriverLie = Lie<CopyDriverShape>
/** A lie that an engine tells. */
export type EngineLie = Lie<TensorEngineShape>

/** First byte behind the last element. */
export const endOf = (tensor: Tensor): number => {
  const last = tensor.shape.reduce((sum, length, dim) => sum + (length - 1) * tensor.strides[dim]!, 1)
  return tensor.byteOffset + Math.ceil((last * bitsOf(tensor.dtype)) / 8)
}
