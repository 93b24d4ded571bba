// SPDX-License-Identifier: Apache-2.0
/**
 * Elements of a tensor that changed: where each lies, and its new bits.
 *
 * Invariants: a position is the index of an element in the row-major order of the tensor's shape, whatever its strides;
 * positions ascend, and no element is named twice. Which changes there are is so written in one way only.
 */
import type { Tensor } from "./Tensor.ts"

/** Elements that a tensor with changes may have: positions are 32-bit numbers. */
export const changeLimit = 2 ** 32

/** Both are dense and of one dimension, of equal length. */
export interface Changes {
  /** uint32: positions, ascending. */
  readonly positions: Tensor
  /** Elements, in the type of the tensor that changed. */
  readonly values: Tensor
}

/** The first changes of a list, without copying. Where there are fewer, all of them. */
export const firstChanges = ({ positions, values }: Changes, count: number): Changes => {
  const first = (tensor: Tensor): Tensor => ({ ...tensor, shape: [Math.min(count, tensor.shape[0]!)] })
  return { positions: first(positions), values: first(values) }
}
