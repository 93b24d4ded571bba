// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold before any byte moves: tensors of devices that this one reaches or of the host, alive, inside their
 * storage, of fitting shapes and types. Sorts the moves of a batch by who does them.
 *
 * Invariant: an address reaches the addon only after its storage has proven to be memory of this process or mapped here.
 */

import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeHostProof } from "@tensorferry/native/HostProof"
import { type Checked, describeTensor, isPlainMove, makeMoveChecks } from "@tensorferry/native/MoveChecks"
import { addressOf, MoveTable } from "@tensorferry/native/MoveTable"
import { ViewScan } from "@tensorferry/native/ViewScan"
import * as Result from "effect/Result"
import { DeviceRegion } from "./DeviceRegion.ts"
import { refusal } from "./failures.ts"
import type { Gpu } from "./Gpu.ts"

/** A run of bytes between host and device. */
export interface EngineCopy {
  readonly isToDevice: boolean
  readonly destination: number
  readonly source: number
  readonly byteLength: number
}

/** Host memory that kernels reach. */
export interface HostRange {
  readonly address: number
  readonly byteLength: number
}

/** A batch as the addon takes it; moves of nothing are left out. */
export interface CheckedBatch {
  /** What one kernel does; empty where there is nothing for it. */
  readonly table: BigUint64Array
  readonly copies: ReadonlyArray<EngineCopy>
  /** What must be pinned while the kernel runs. */
  readonly pins: ReadonlyArray<HostRange>
  /** All memory is of devices: nothing but freeing takes it away. */
  readonly isOfDevices: boolean
}

/** The checks of one engine. */
export const makeChecks = (gpu: Gpu) => {
  const hostProof = makeHostProof(gpu.addon)

  const deviceFault = (op: string, tensor: Tensor, region: DeviceRegion): TensorError | undefined => {
    if (region.family !== gpu.vendor || tensor.device.family !== gpu.vendor) {
      return refusal(
        "InvalidRequest",
        op,
        `${describeTensor(tensor)} on ${formatDevice(tensor.device)} is not of ${gpu.vendor}.`
      )
    }
    const reached = gpu.enablePeerAccess(region.ordinal)
    return Result.isSuccess(reached)
      ? undefined
      : refusal("Unsupported", op, `${describeTensor(tensor)} on ${formatDevice(tensor.device)}: ${reached.failure}.`)
  }

  /** Host memory must show bytes that lie where it says. */
  const hostFault = (op: string, tensor: Tensor): TensorError | undefined => {
    if (tensor.device.family !== "cpu" || tensor.storage.bytes === undefined) {
      const place = formatDevice(tensor.device)
      return refusal(
        "InvalidRequest",
        op,
        `${describeTensor(tensor)} on ${place} is memory of neither this backend nor the host.`
      )
    }
    const fault = hostProof(tensor.storage)
    return fault === undefined ? undefined : refusal(fault.tag, op, fault.detail)
  }

  const memoryFault = (op: string, tensor: Tensor): TensorError | undefined => {
    const region = tensor.storage.sharing
    return region instanceof DeviceRegion ? deviceFault(op, tensor, region) : hostFault(op, tensor)
  }

  const { checkTensor, checkMove, checkApart } = makeMoveChecks(refusal, memoryFault)

  const [dstScan, srcScan] = [new ViewScan(), new ViewScan()]

  /** True for the usual move, whose checks all pass. Anything else is judged by `checkMove`, which finds the words. */
  const isPlain = (move: Move, to: unknown, from: unknown): boolean => {
    const { dst, src } = move
    if (!(to instanceof DeviceRegion && from instanceof DeviceRegion)) return false
    if (to.ordinal !== gpu.ordinal || from.ordinal !== gpu.ordinal) return false
    if (to.family !== gpu.vendor || from.family !== gpu.vendor) return false
    if (dst.device.family !== gpu.vendor || src.device.family !== gpu.vendor) return false
    return isPlainMove(move, dstScan, srcScan)
  }

  /** Checks all moves and encodes them on the way. */
  const checkBatch = (op: string, moves: ReadonlyArray<Move>): Checked<CheckedBatch> => {
    const table = new MoveTable(moves.length)
    const copies: Array<EngineCopy> = []
    const pins: Array<HostRange> = []
    let isOfDevices = true
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
      const toDevice = to instanceof DeviceRegion
      const fromDevice = from instanceof DeviceRegion
      const destination = toDevice ? to.address + dst.byteOffset : addressOf(dst)
      const source = fromDevice ? from.address + src.byteOffset : addressOf(src)
      const isRun = dstScan.isDense && srcScan.isDense && dst.dtype === src.dtype
      if (!(toDevice && fromDevice)) {
        isOfDevices = false
        if (isRun) {
          copies.push({ isToDevice: toDevice, destination, source, byteLength: dstScan.byteSpan })
          continue
        }
        if (!toDevice) pins.push({ address: destination, byteLength: dstScan.byteSpan })
        if (!fromDevice) pins.push({ address: source, byteLength: srcScan.byteSpan })
      }
      if (isRun) table.addRun(destination, source, dstScan.byteSpan)
      else table.add(dst, src, destination, source)
    }
    return Result.succeed({ table: table.table, copies, pins, isOfDevices })
  }

  /** Host memory under tensors that a kernel reaches as they are. */
  const pinsOf = (tensors: ReadonlyArray<Tensor>): ReadonlyArray<HostRange> =>
    tensors.flatMap((tensor) => {
      if (tensor.storage.sharing instanceof DeviceRegion) return []
      dstScan.read(tensor)
      return dstScan.elements === 0 ? [] : [{ address: addressOf(tensor), byteLength: dstScan.byteSpan }]
    })

  return { checkTensor, checkMove, checkApart, checkBatch, pinsOf, memoryFault }
}

/** What `makeChecks` gives. */
export type Checks = ReturnType<typeof makeChecks>
