// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which a search for changes, or their writing, crosses into an addon: 64-bit words, one table per call.
 * Only checked tensors are encoded.
 *
 * Words, in this order:
 * - 0 to find changes, 1 to write them; the type of the elements; dimensions;
 * - changes that there is room for, or that are written;
 * - addresses of the base or the destination, of the current tensor (0 where changes are written), positions and values;
 * - the shape; strides in elements of the base or destination, and of the current tensor (0 where changes are written).
 */
import { dtypes } from "@tensorferry/core/base/DType"
import type { Changes } from "@tensorferry/core/tensor/Changes"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { addressOf, TableWriter } from "./MoveTable.ts"

/** Words before shape and strides. */
const headWords = 8
/** Shape and two strides. */
const wordsPerDimension = 3

const encode = (
  op: number,
  first: Tensor,
  second: Tensor | undefined,
  { positions, values }: Changes
): BigUint64Array => {
  const writer = new TableWriter(headWords + wordsPerDimension * first.shape.length)
  writer.putAll([
    ...[op, dtypes.indexOf(first.dtype), first.shape.length, positions.shape[0]!],
    ...[addressOf(first), second === undefined ? 0 : addressOf(second), addressOf(positions), addressOf(values)]
  ])
  writer.putAll(first.shape)
  writer.putAll(first.strides)
  writer.putAll(second?.strides ?? first.shape.map(() => 0))
  return writer.table
}

/** The table of a search for changes. */
export const encodeDiff = (base: Tensor, current: Tensor, into: Changes): BigUint64Array =>
  encode(0, base, current, into)

/** The table of a writing of changes. */
export const encodeApply = (destination: Tensor, changes: Changes): BigUint64Array =>
  encode(1, destination, undefined, changes)
