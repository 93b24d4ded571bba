/**
 * What must hold before any byte moves: tensors of this device, alive, inside their storage, of fitting shapes and types.
 *
 * Invariant: an address reaches the addon only after its storage has proven to be memory of this process.
 */
import { bitsOf, isCastable, isSubByte } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import { type TensorError, type TensorReason, tensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, type Move, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Addon, backendName } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import { addressOf } from "./OpTable.ts"
import { findOverlap } from "./Overlap.ts"
import type { PinCount } from "./PinCount.ts"

export type Checked<A> = Result.Result<A, TensorError>

/** The moves of a batch that write anything, in whole bytes. */
export interface CheckedBatch {
  readonly moves: ReadonlyArray<Move>
  /** First bytes, by move. */
  readonly destinations: Float64Array
  readonly sources: Float64Array
  /** What native work over the batch must pin. */
  readonly pins: ReadonlySet<PinCount>
}

/** Dimensions longer than 1 that the addon takes. */
const maxDimensions = 16

const remedies: Record<TensorReason["_tag"], string> = {
  OutOfMemory: "Free tensors or ask for less.",
  FreedStorage: "Keep the scope that allocated the storage open while it is used.",
  InvalidRequest: "Correct the request.",
  Unsupported: "Look at the engine's capabilities first.",
  DeviceFailure: "Look at the native code; the request may be tried again."
}

export const refusal = (tag: TensorReason["_tag"], op: string, detail: string): TensorError =>
  tensorError(tag, { backend: backendName, op, detail, remedy: remedies[tag] })

const describe = (tensor: Tensor): string => `${tensor.dtype}${formatShape(tensor.shape)}`

/** A view made by hand may leave its storage; the fast test is exact, the slow one finds the words. */
const leavesStorage = (tensor: Tensor): string | undefined => {
  const { shape, strides, byteOffset, storage } = tensor
  const bits = bitsOf(tensor.dtype)
  let last = 1
  let isSound = strides.length === shape.length && shape.length < 256
  for (let dim = 0; dim < shape.length; dim++) {
    isSound &&= shape[dim]! > 0 && strides[dim]! >= 0
    last += (shape[dim]! - 1) * strides[dim]!
  }
  isSound &&= Number.isSafeInteger(byteOffset) && byteOffset >= 0 && Number.isSafeInteger(last * bits)
  if (isSound && byteOffset + Math.ceil((last * bits) / 8) <= storage.byteLength) return undefined
  const view = tensorView(storage, tensor.dtype, shape, tensor)
  return Result.isSuccess(view) ? undefined : view.failure.detail
}

/** True where two indices name the same bytes because a dimension does not advance. */
const repeatsElements = ({ shape, strides }: Tensor): boolean => {
  let repeats = false
  for (let dim = 0; dim < shape.length; dim++) {
    if (shape[dim] === 0) return false
    repeats ||= shape[dim]! > 1 && strides[dim] === 0
  }
  return repeats
}

/** The checks of one engine. Storages that proved to be memory of this process are remembered. */
export const makeChecks = (addon: Addon) => {
  const proven = new WeakSet<Storage>()

  /** Memory that this package did not make must show bytes that lie where it says. */
  const foreignFault = (op: string, storage: Storage): TensorError | undefined => {
    if (storage.bytes === undefined) {
      return refusal("InvalidRequest", op, `Storage ${storage.generation} shows no bytes to the host.`)
    }
    const { buffer } = storage.bytes
    if (buffer instanceof ArrayBuffer && buffer.detached) {
      return refusal("FreedStorage", op, `The buffer of storage ${storage.generation} was transferred or detached.`)
    }
    if (proven.has(storage)) return undefined
    const address = addon.addressOf(storage.bytes)
    const isThere = address.code === "Ok" && (address.value === storage.address || storage.byteLength === 0)
    if (!isThere || storage.bytes.byteLength < storage.byteLength) {
      return refusal(
        "InvalidRequest",
        op,
        `Storage ${storage.generation} states an address where its bytes do not lie.`
      )
    }
    proven.add(storage)
    return undefined
  }

  const tensorFault = (op: string, tensor: Tensor, isWritten: boolean): TensorError | undefined => {
    const { storage } = tensor
    if (storage.isFreed()) return refusal("FreedStorage", op, `The storage of ${describe(tensor)} was freed.`)
    if (tensor.device.family !== "cpu" || storage.device.family !== "cpu") {
      const place = formatDevice(tensor.device)
      return refusal("InvalidRequest", op, `${describe(tensor)} on ${place} is not a tensor of the host.`)
    }
    const outside = leavesStorage(tensor)
    if (outside !== undefined) return refusal("InvalidRequest", op, `The tensor leaves its storage: ${outside}.`)
    if (!(storage.sharing instanceof HostRegion)) return foreignFault(op, storage)
    if (!isWritten || storage.sharing.isWritable) return undefined
    return refusal(
      "InvalidRequest",
      op,
      `${describe(tensor)} lies in memory of another process, which is not written to.`
    )
  }

  const shapeFault = (op: string, { dst, src }: Move): TensorError | undefined => {
    if (!equalShapes(dst.shape, src.shape)) {
      return refusal("InvalidRequest", op, `The shapes of ${describe(dst)} and ${describe(src)} differ.`)
    }
    if (dst.shape.length > maxDimensions && dst.shape.filter((length) => length > 1).length > maxDimensions) {
      return refusal("Unsupported", op, `${describe(dst)} has more than ${maxDimensions} dimensions.`)
    }
    return isCastable(src.dtype, dst.dtype)
      ? undefined
      : refusal("Unsupported", op, `There is no conversion from ${src.dtype} to ${dst.dtype}.`)
  }

  const moveFault = (op: string, move: Move): TensorError | undefined =>
    tensorFault(op, move.dst, true) ??
    tensorFault(op, move.src, false) ??
    shapeFault(op, move) ??
    (repeatsElements(move.dst)
      ? refusal("InvalidRequest", op, `${describe(move.dst)} repeats elements and cannot be written to.`)
      : undefined)

  /** The move in whole bytes, or why it cannot be done. */
  const checkMove = (op: string, move: Move): Checked<Move> => {
    const fault = moveFault(op, move)
    if (fault !== undefined) return Result.fail(fault)
    if (!isSubByte(move.dst.dtype) || move.dst.shape.includes(0)) return Result.succeed(move)
    return Result.mapError(byteMove(move), ({ detail }) => refusal("InvalidRequest", op, `${detail}.`))
  }

  const checkBatch = (op: string, moves: ReadonlyArray<Move>): Checked<CheckedBatch> => {
    const checked: Array<Move> = []
    const [destinations, sources] = [new Float64Array(moves.length), new Float64Array(moves.length)]
    const pins = new Set<PinCount>()
    for (const move of moves) {
      const result = checkMove(op, move)
      if (Result.isFailure(result)) return Result.fail(result.failure)
      const { dst, src } = result.success
      if (dst.shape.includes(0)) continue
      destinations[checked.length] = addressOf(dst)
      sources[checked.length] = addressOf(src)
      checked.push(result.success)
      if (dst.storage.sharing instanceof HostRegion) pins.add(dst.storage.sharing.pins)
      if (src.storage.sharing instanceof HostRegion) pins.add(src.storage.sharing.pins)
    }
    const overlap = findOverlap(checked, destinations, sources)
    return overlap === undefined
      ? Result.succeed({ moves: checked, destinations, sources, pins })
      : Result.fail(refusal("InvalidRequest", op, `Regions of the batch overlap at address ${overlap}.`))
  }

  return { checkMove, checkBatch }
}

/** What native work over these tensors must pin. */
export const pinsOf = (tensors: Iterable<Tensor>): Set<PinCount> => {
  const pins = new Set<PinCount>()
  for (const { storage } of tensors) if (storage.sharing instanceof HostRegion) pins.add(storage.sharing.pins)
  return pins
}
