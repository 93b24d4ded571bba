/**
 * What must hold before any byte moves: tensors of this device, alive, inside their storage, of fitting shapes and types.
 *
 * Invariant: an address reaches the addon only after its storage has proven to be memory of this process.
 */
import { isCastable, isSubByte } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import { type TensorError, type TensorReason, tensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, type Move, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Addon, backendName } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import { addressOf, MoveTable } from "./OpTable.ts"
import type { PinCount } from "./PinCount.ts"
import { ViewScan } from "./ViewScan.ts"

export type Checked<A> = Result.Result<A, TensorError>

/** The moves of a batch that write anything, as the addon takes them. */
export interface CheckedBatch {
  readonly table: BigUint64Array
  /** What native work over the batch must pin. */
  readonly pins: ReadonlySet<PinCount>
  /** All memory is of this package, none wrapped: nothing but `HostRegion.free` takes it away. */
  readonly isOfRegions: boolean
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

/** A view made by hand may leave its storage. */
const leavesStorage = ({ storage, dtype, shape, strides, byteOffset }: Tensor): string | undefined => {
  if (shape.length > 255) return `${shape.length} dimensions are too many`
  const view = tensorView(storage, dtype, shape, { strides, byteOffset })
  return Result.isSuccess(view) ? undefined : view.failure.detail
}

const equalLengths = (a: ReadonlyArray<number>, b: ReadonlyArray<number>): boolean => {
  if (a.length !== b.length) return false
  for (let dim = 0; dim < a.length; dim++) if (a[dim] !== b[dim]) return false
  return true
}

/** True where two indices name the same bytes because a dimension does not advance. */
const repeatsElements = ({ shape, strides }: Tensor): boolean =>
  !shape.includes(0) && shape.some((length, dim) => length > 1 && strides[dim] === 0)

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

  const [dstScan, srcScan] = [new ViewScan(), new ViewScan()]

  /** True for the usual move, whose checks all pass. Anything else is judged by `checkMove`, which finds the words. */
  const isPlain = ({ dst, src }: Move, to: unknown, from: unknown): boolean => {
    if (!(to instanceof HostRegion && to.isWritable && from instanceof HostRegion)) return false
    if (dst.storage.isFreed() || src.storage.isFreed() || dst.device.family !== "cpu" || src.device.family !== "cpu") {
      return false
    }
    if (dst.dtype !== src.dtype && !isCastable(src.dtype, dst.dtype)) return false
    if (isSubByte(dst.dtype) || dst.shape.length > maxDimensions || !equalLengths(dst.shape, src.shape)) return false
    dstScan.read(dst)
    srcScan.read(src)
    return dstScan.isSound && srcScan.isSound && dstScan.elements > 0 && !dstScan.repeats
  }

  /** Checks all moves and encodes them on the way. */
  const checkBatch = (op: string, moves: ReadonlyArray<Move>): Checked<CheckedBatch> => {
    const table = new MoveTable(moves.length)
    const pins = new Set<PinCount>()
    let lastPins: PinCount | undefined
    let isOfRegions = true
    const pin = (region: unknown): void => {
      if (!(region instanceof HostRegion)) isOfRegions = false
      else if (region.pins !== lastPins) {
        lastPins = region.pins
        pins.add(lastPins)
      }
    }
    for (let i = 0; i < moves.length; i++) {
      let move = moves[i]!
      const [to, from] = [move.dst.storage.sharing, move.src.storage.sharing]
      if (!isPlain(move, to, from)) {
        const checked = checkMove(op, move)
        if (Result.isFailure(checked)) return Result.fail(checked.failure)
        move = checked.success
        if (move.dst.shape.includes(0)) continue
        dstScan.read(move.dst)
        srcScan.read(move.src)
      }
      const { dst, src } = move
      const destination = to instanceof HostRegion ? to.address + dst.byteOffset : addressOf(dst)
      const source = from instanceof HostRegion ? from.address + src.byteOffset : addressOf(src)
      if (dstScan.isDense && srcScan.isDense && dst.dtype === src.dtype) {
        table.addRun(destination, source, dstScan.byteSpan)
      } else {
        table.add(dst, src, destination, source)
      }
      pin(to)
      pin(from)
    }
    return Result.succeed({ table: table.table, pins, isOfRegions })
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

  return { checkMove, checkApart, checkBatch }
}

/** What native work over these tensors must pin. */
export const pinsOf = (tensors: Iterable<Tensor>): Set<PinCount> => {
  const pins = new Set<PinCount>()
  for (const { storage } of tensors) if (storage.sharing instanceof HostRegion) pins.add(storage.sharing.pins)
  return pins
}
