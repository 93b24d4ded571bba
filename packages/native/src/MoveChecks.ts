// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold of moves, reductions and host bytes before any byte moves, whatever device they are on: tensors alive,
 * inside their storage, of fitting shapes and types. An engine adds which memory it takes.
 */

import { isCastable, isSubByte, kindOf } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import { type ReduceOp, type TensorError, type TensorReason, tensorError } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, type Move, sharesElements, type Tensor, tensorFault } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { addressOf } from "./MoveTable.ts"
import { ViewScan } from "./ViewScan.ts"

/** A value, or the error with which an engine refuses a request. */
export type Checked<A> = Result.Result<A, TensorError>

/** Dimensions longer than 1 that the addons take (see MoveTable). */
export const maxDimensions = 16

const remedies: Record<TensorReason["_tag"], string> = {
  OutOfMemory: "Free tensors or ask for less.",
  FreedStorage: "Keep the scope that allocated the storage open while it is used.",
  InvalidRequest: "Correct the request.",
  Unsupported: "Look at the engine's capabilities first.",
  DeviceFailure: "Try again. If it fails again, look up the number of the device's error and see the system's log."
}

/** Makes the error of a refused request; `detail` is a sentence. */
export type Refusal = (tag: TensorReason["_tag"], op: string, detail: string) => TensorError

/** Errors that name the backend, with the usual remedy. */
export const refusalOf =
  (backend: string): Refusal =>
  (tag, op, detail) =>
    tensorError(tag, { backend, op, detail, remedy: remedies[tag] })

/** Type and shape, as `float32[2,3]`. */
export const describeTensor = (tensor: Tensor): string => `${tensor.dtype}${formatShape(tensor.shape)}`

/** Whether two shapes are the same; for the usual move, where a call per dimension would cost as much as the copy. */
export const equalLengths = (a: ReadonlyArray<number>, b: ReadonlyArray<number>): boolean => {
  if (a.length !== b.length) return false
  for (let dim = 0; dim < a.length; dim++) if (a[dim] !== b[dim]) return false
  return true
}

/**
 * True for a usual move between living tensors, as the scans of its two sides say, which are read here. Anything else is
 * judged by `checkMove`, which finds the words. Whose memory it is, is the caller's to know.
 */
export const isPlainMove = ({ dst, src }: Move, dstScan: ViewScan, srcScan: ViewScan): boolean => {
  if (dst.storage.isFreed() || src.storage.isFreed()) return false
  if (dst.dtype !== src.dtype && !isCastable(src.dtype, dst.dtype)) return false
  if (isSubByte(dst.dtype) || dst.shape.length > maxDimensions || !equalLengths(dst.shape, src.shape)) return false
  dstScan.read(dst)
  srcScan.read(src)
  if (!(dstScan.isSound && srcScan.isSound && dstScan.elements > 0)) return false
  return dstScan.isNested || !sharesElements(dst)
}

/** `memoryFault` says whether the memory of a tensor is the engine's to read, or to write. */
export const makeMoveChecks = (
  refusal: Refusal,
  memoryFault: (op: string, tensor: Tensor, isWritten: boolean) => TensorError | undefined
) => {
  const [dstScan, srcScan] = [new ViewScan(), new ViewScan()]

  const faultOf = (op: string, tensor: Tensor, isWritten: boolean): TensorError | undefined => {
    if (tensor.storage.isFreed()) {
      return refusal("FreedStorage", op, `The storage of ${describeTensor(tensor)} was freed.`)
    }
    const fault = tensorFault(tensor, isWritten)
    if (fault !== undefined) return refusal("InvalidRequest", op, `${describeTensor(tensor)} cannot be used: ${fault}.`)
    return memoryFault(op, tensor, isWritten)
  }

  const shapeFault = (op: string, { dst, src }: Move): TensorError | undefined => {
    if (!equalShapes(dst.shape, src.shape)) {
      return refusal("InvalidRequest", op, `The shapes of ${describeTensor(dst)} and ${describeTensor(src)} differ.`)
    }
    if (dst.shape.length > maxDimensions && dst.shape.filter((length) => length > 1).length > maxDimensions) {
      return refusal("Unsupported", op, `${describeTensor(dst)} has more than ${maxDimensions} dimensions.`)
    }
    return isCastable(src.dtype, dst.dtype)
      ? undefined
      : refusal("Unsupported", op, `There is no conversion from ${src.dtype} to ${dst.dtype}.`)
  }

  const moveFault = (op: string, move: Move): TensorError | undefined =>
    faultOf(op, move.dst, true) ?? faultOf(op, move.src, false) ?? shapeFault(op, move)

  /** The move in whole bytes, or why it cannot be done. */
  const checkMove = (op: string, move: Move): Checked<Move> => {
    const fault = moveFault(op, move)
    if (fault !== undefined) return Result.fail(fault)
    if (!isSubByte(move.dst.dtype) || move.dst.shape.includes(0)) return Result.succeed(move)
    return Result.mapError(byteMove(move), ({ detail }) => refusal("InvalidRequest", op, `${detail}.`))
  }

  /** The move, unless its two sides are dense regions that meet without being the same. */
  const checkApart = (op: string, move: Move): Checked<Move> =>
    Result.flatMap(checkMove(op, move), (checked) => {
      dstScan.read(checked.dst)
      srcScan.read(checked.src)
      const [to, from] = [addressOf(checked.dst), addressOf(checked.src)]
      const isJudged = dstScan.isDense && srcScan.isDense && dstScan.elements > 0 && to !== from
      const meets = to < from + srcScan.byteSpan && from < to + dstScan.byteSpan
      return isJudged && meets
        ? Result.fail(refusal("InvalidRequest", op, `The regions overlap at address ${Math.max(to, from)}.`))
        : Result.succeed(checked)
    })

  return { checkTensor: faultOf, checkMove, checkApart }
}

/** `checkApart` checks a move and that its sides do not meet. */
export const makeReduceCheck =
  (refusal: Refusal, checkApart: (op: string, move: Move) => Checked<Move>) =>
  (dst: Tensor, sources: ReadonlyArray<Tensor>, op: ReduceOp): Checked<void> => {
    const call = `reduce ${op}`
    if (sources.length === 0) return Result.fail(refusal("InvalidRequest", call, "There are no operands."))
    const isDefined = isCastable(dst.dtype, "float32") && !(op === "avg" && kindOf(dst.dtype) === "bool")
    if (!isDefined) return Result.fail(refusal("Unsupported", call, `There is no ${op} of ${dst.dtype}.`))
    for (const src of sources) {
      if (src.dtype !== dst.dtype) {
        return Result.fail(refusal("InvalidRequest", call, `The types ${dst.dtype} and ${src.dtype} differ.`))
      }
      const checked = checkApart(call, { dst, src })
      if (Result.isFailure(checked)) return Result.fail(checked.failure)
    }
    return Result.succeed(undefined)
  }

/** Storage over bytes that the caller keeps: `addressOf` asks the addon where they lie. */
export const hostStorage = (
  refusal: Refusal,
  bytes: Uint8Array,
  addressOf: (bytes: Uint8Array) => Checked<bigint>
): Checked<Storage> => {
  const { buffer } = bytes
  if (buffer instanceof ArrayBuffer && buffer.detached) {
    return Result.fail(refusal("FreedStorage", "wrapHost", "The bytes belong to a buffer that was transferred away."))
  }
  if (buffer instanceof ArrayBuffer && buffer.resizable) {
    return Result.fail(refusal("InvalidRequest", "wrapHost", "The buffer is resizable, so its bytes could be removed."))
  }
  return Result.map(addressOf(bytes), (address) =>
    makeStorage({ device: cpu, address, byteLength: bytes.byteLength, bytes, release: () => {} })
  )
}
