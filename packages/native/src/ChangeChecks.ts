// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold before changes are looked for or written, whatever device the tensors are on: equal shapes and types,
 * whole-byte elements, lists that are dense and apart from all else.
 */
import { isSubByte } from "@tensorferry/core/base/DType"
import { elementCount, equalShapes } from "@tensorferry/core/base/Region"
import { type Changes, changeLimit } from "@tensorferry/core/tensor/Changes"
import { isContiguous, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Checked, describeTensor, type makeMoveChecks, maxDimensions, type Refusal } from "./MoveChecks.ts"
import { meet, type QuantizedFault } from "./QuantizeChecks.ts"

const invalid = (detail: string): QuantizedFault => ({ tag: "InvalidRequest", detail })
const unsupported = (detail: string): QuantizedFault => ({ tag: "Unsupported", detail })

/** Why a tensor's changes cannot be listed there. */
const listFault = (tensor: Tensor, { positions, values }: Changes): QuantizedFault | undefined => {
  if (isSubByte(tensor.dtype)) {
    return unsupported(`Elements of ${tensor.dtype} share bytes; view them as uint8.`)
  }
  if (elementCount(tensor.shape) > changeLimit) {
    return unsupported(`${describeTensor(tensor)} has more than ${changeLimit} elements; take it in parts.`)
  }
  if (tensor.shape.filter((length) => length > 1).length > maxDimensions) {
    return unsupported(`${describeTensor(tensor)} has more than ${maxDimensions} dimensions.`)
  }
  if (positions.dtype !== "uint32" || values.dtype !== tensor.dtype) {
    return invalid(
      `Changes of ${tensor.dtype} are uint32 with ${tensor.dtype}, not ${positions.dtype} with ${values.dtype}.`
    )
  }
  const areLists = [positions, values].every((list) => list.shape.length === 1 && isContiguous(list))
  return areLists && positions.shape[0] === values.shape[0]
    ? undefined
    : invalid(`${describeTensor(positions)} and ${describeTensor(values)} are not two dense lists of one length.`)
}

/** Why two tensors cannot be compared, or their changes not be listed there. */
export const diffFault = (base: Tensor, current: Tensor, into: Changes): QuantizedFault | undefined =>
  base.dtype === current.dtype && equalShapes(base.shape, current.shape)
    ? listFault(current, into)
    : invalid(`${describeTensor(base)} and ${describeTensor(current)} are not of one shape and type.`)

/** Why changes cannot be those of the tensor, as far as can be said without reading them. */
export const applyFault = listFault

/** What an engine says of positions that it read and cannot take; `at` is the first of them. */
export const positionsRefusal = (refusal: Refusal, destination: Tensor, at: number) =>
  refusal(
    "InvalidRequest",
    "apply",
    `Position ${at} of the changes does not follow the one before, or lies outside of ${describeTensor(destination)}; nothing was written.`
  )

/** `checkTensor` is the engine's own check of one tensor. */
export const makeChangeCheck = (
  refusal: Refusal,
  { checkTensor }: Pick<ReturnType<typeof makeMoveChecks>, "checkTensor">
) => {
  const checked = (
    op: string,
    fault: QuantizedFault | undefined,
    written: ReadonlyArray<Tensor>,
    read: ReadonlyArray<Tensor>
  ): Checked<void> => {
    if (fault !== undefined) return Result.fail(refusal(fault.tag, op, fault.detail))
    for (const tensor of [...written, ...read]) {
      const wrong = checkTensor(op, tensor, written.includes(tensor))
      if (wrong !== undefined) return Result.fail(wrong)
    }
    for (const [at, one] of written.entries()) {
      const other = [...written.slice(at + 1), ...read].find(
        (tensor) => !one.shape.includes(0) && !tensor.shape.includes(0) && meet(one, tensor)
      )
      if (other === undefined) continue
      return Result.fail(
        refusal("InvalidRequest", op, `${describeTensor(one)}, which is written, overlaps ${describeTensor(other)}.`)
      )
    }
    return Result.succeed(undefined)
  }
  return {
    diff: (base: Tensor, current: Tensor, into: Changes): Checked<void> =>
      checked("diff", diffFault(base, current, into), [into.positions, into.values], [base, current]),
    apply: (destination: Tensor, changes: Changes): Checked<void> =>
      checked("apply", applyFault(destination, changes), [destination], [changes.positions, changes.values])
  }
}
