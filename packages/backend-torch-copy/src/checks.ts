// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold before any byte moves: tensors of this device, alive, inside their storage, of fitting shapes and types.
 *
 * Invariant: an address reaches the addon only after its storage has proven to be memory of this process.
 */

import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeHostProof } from "@tensorferry/native/HostProof"
import {
  type Checked,
  describeTensor,
  equalLengths,
  isPlainMove,
  makeMoveChecks,
  refusalOf
} from "@tensorferry/native/MoveChecks"
import { addressOf, MoveTable } from "@tensorferry/native/MoveTable"
import { ViewScan } from "@tensorferry/native/ViewScan"
import * as Result from "effect/Result"
import { type Addon, backendName } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import type { PinCount } from "./PinCount.ts"

/** The moves of a batch that write anything, as the addon takes them. */
export interface CheckedBatch {
  readonly table: BigUint64Array
  /** What native work over the batch must pin. */
  readonly pins: ReadonlySet<PinCount>
  /** All memory is of this package, none wrapped: nothing but `HostRegion.free` takes it away. */
  readonly isOfRegions: boolean
}

export const refusal = refusalOf(backendName)

/** Moves whose regions are looked up together. */
const lookAhead = 64

/** The checks of one engine. Storages that proved to be memory of this process are remembered. */
export const makeChecks = (addon: Addon) => {
  const hostFault = makeHostProof(addon)

  const memoryFault = (op: string, tensor: Tensor, isWritten: boolean): TensorError | undefined => {
    const { storage } = tensor
    if (tensor.device.family !== "cpu" || storage.device.family !== "cpu") {
      const place = formatDevice(tensor.device)
      return refusal("InvalidRequest", op, `${describeTensor(tensor)} on ${place} is not a tensor of the host.`)
    }
    if (!(storage.sharing instanceof HostRegion)) {
      const fault = hostFault(storage)
      return fault === undefined ? undefined : refusal(fault.tag, op, fault.detail)
    }
    if (!isWritten || storage.sharing.isWritable) return undefined
    return refusal(
      "InvalidRequest",
      op,
      `${describeTensor(tensor)} lies in memory of another process, which is not written to.`
    )
  }

  const { checkTensor, checkMove, checkApart } = makeMoveChecks(refusal, memoryFault)

  const [dstScan, srcScan] = [new ViewScan(), new ViewScan()]

  /** True for the usual move, whose checks all pass. Anything else is judged by `checkMove`, which finds the words. */
  const isPlain = (move: Move, to: unknown, from: unknown): boolean => {
    const { dst, src } = move
    if (!(to instanceof HostRegion && to.isWritable && from instanceof HostRegion)) return false
    if (dst.device.family !== "cpu" || src.device.family !== "cpu" || !isPlainMove(move, dstScan, srcScan)) return false
    if (dstScan.isDense) to.rememberDense(dst, dstScan.byteSpan)
    if (srcScan.isDense) from.rememberDense(src, srcScan.byteSpan)
    return true
  }

  /**
   * Bytes of a move between two tensors that were found plain and dense before; 0 for any other. Most tensors are copied
   * again and again, in one list or another, and every part of a view lies in memory of its own: reading all of them once
   * more would cost more than a small copy.
   */
  const knownRun = ({ dst, src }: Move, to: HostRegion, from: HostRegion): number => {
    const bytes = to.isWritable ? to.denseBytesOf(dst) : 0
    const isRun = bytes > 0 && bytes === from.denseBytesOf(src) && dst.dtype === src.dtype
    return isRun && (dst.shape === src.shape || equalLengths(dst.shape, src.shape)) ? bytes : 0
  }

  /**
   * The regions of the next moves, destination and source in turn. Each is found by way of objects that lie anywhere in
   * memory; in a loop that does nothing else the processor reads those of many moves at once.
   */
  const findRegions = (moves: ReadonlyArray<Move>, first: number, regions: Array<unknown>): void => {
    const count = Math.min(lookAhead, moves.length - first)
    for (let i = 0; i < count; i++) {
      const { dst, src } = moves[first + i]!
      regions[2 * i] = dst.storage.sharing
      regions[2 * i + 1] = src.storage.sharing
    }
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
    const regions: Array<unknown> = []
    for (let i = 0; i < moves.length; i++) {
      let move = moves[i]!
      const at = 2 * (i % lookAhead)
      if (at === 0) findRegions(moves, i, regions)
      const to = regions[at]
      const from = regions[at + 1]
      if (to instanceof HostRegion && from instanceof HostRegion) {
        const bytes = knownRun(move, to, from)
        if (bytes > 0) {
          table.addRun(to.address + move.dst.byteOffset, from.address + move.src.byteOffset, bytes)
          pin(to)
          pin(from)
          continue
        }
      }
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

  return { checkTensor, checkMove, checkApart, checkBatch }
}

/** What native work over these tensors must pin. */
export const pinsOf = (tensors: Iterable<Tensor>): Set<PinCount> => {
  const pins = new Set<PinCount>()
  for (const { storage } of tensors) if (storage.sharing instanceof HostRegion) pins.add(storage.sharing.pins)
  return pins
}
