// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold before any byte moves: tensors of this device or of the host, alive, inside their storage, of fitting
 * shapes and types.
 *
 * Invariant: an address reaches the addon only after its storage has proven to be memory of the device or of this process.
 */

import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeHostProof } from "@tensorferry/native/HostProof"
import { type Checked, describeTensor, makeMoveChecks } from "@tensorferry/native/MoveChecks"
import { addressOf, MoveTable } from "@tensorferry/native/MoveTable"
import { ViewScan } from "@tensorferry/native/ViewScan"
import * as Result from "effect/Result"
import { backendName } from "./Addon.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import { refusal } from "./failures.ts"
import type { Xpu } from "./Xpu.ts"

/** The checks of one engine. */
export const makeChecks = (xpu: Xpu) => {
  const hostFault = makeHostProof(xpu.addon)

  const memoryFault = (op: string, tensor: Tensor): TensorError | undefined => {
    const { sharing } = tensor.storage
    const place = formatDevice(tensor.device)
    if (sharing instanceof DeviceRegion) {
      if (sharing.xpu === xpu && tensor.device.family === backendName) return undefined
      const here = formatDevice(xpu.device)
      return refusal(
        sharing.xpu.device.index === xpu.device.index ? "InvalidRequest" : "Unsupported",
        op,
        `${describeTensor(tensor)} on ${place} is memory of another open device than this ${here}.`
      )
    }
    if (tensor.device.family !== "cpu") {
      const what = `${describeTensor(tensor)} on ${place} is memory of neither this backend nor the host.`
      return refusal("InvalidRequest", op, what)
    }
    const fault = hostFault(tensor.storage)
    return fault === undefined ? undefined : refusal(fault.tag, op, fault.detail)
  }

  const { checkMove, checkTensor } = makeMoveChecks(refusal, memoryFault)
  const [dstScan, srcScan] = [new ViewScan(), new ViewScan()]

  return {
    checkMove,
    checkTensor,
    /** Checks all moves and encodes those that write anything. */
    checkBatch: (op: string, moves: ReadonlyArray<Move>): Checked<BigUint64Array> => {
      const table = new MoveTable(moves.length)
      for (const move of moves) {
        const checked = checkMove(op, move)
        if (Result.isFailure(checked)) return Result.fail(checked.failure)
        const { dst, src } = checked.success
        if (dst.shape.includes(0)) continue
        dstScan.read(dst)
        srcScan.read(src)
        const [destination, source] = [addressOf(dst), addressOf(src)]
        if (dstScan.isDense && srcScan.isDense && dst.dtype === src.dtype) {
          table.addRun(destination, source, dstScan.byteSpan)
        } else table.add(dst, src, destination, source)
      }
      return Result.succeed(table.table)
    }
  }
}
