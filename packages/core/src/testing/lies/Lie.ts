/** What a lie is: a subject made dishonest in one way, and the conformance case that must find it out. */
import { bitsOf } from "../../base/DType.ts"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import type { TensorEngineShape } from "../../service/TensorEngine.ts"
import type { Tensor } from "../../tensor/Tensor.ts"

export interface Lie<Shape> {
  readonly name: string
  /** The conformance case that fails. */
  readonly caughtBy: string
  readonly tell: (honest: Shape) => Shape
}

export type DriverLie = Lie<CopyDriverShape>
export type EngineLie = Lie<TensorEngineShape>

/** First byte behind the last element. */
export const endOf = (tensor: Tensor): number => {
  const last = tensor.shape.reduce((sum, length, dim) => sum + (length - 1) * tensor.strides[dim]!, 1)
  return tensor.byteOffset + Math.ceil((last * bitsOf(tensor.dtype)) / 8)
}
