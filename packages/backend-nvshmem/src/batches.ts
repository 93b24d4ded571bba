/**
 * Flows cut into batches, as both ends cut them, and the moves between a batch's tensors and a slot.
 */
import type { Checked, DriverErrors } from "@tensorferry/backend-cuda/driverErrors"
import type { Flow } from "@tensorferry/backend-cuda/flows"
import { MoveTable } from "@tensorferry/core/backend/MoveTable"
import type { Device } from "@tensorferry/core/tensor/Device"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import {
  byteMove,
  isContiguous,
  sliceTensor,
  type Tensor,
  tensorByteLength,
  tensorView
} from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { segmentTensor } from "./planning/TaskSegmenter.ts"
import { type Batch, packWorkload } from "./planning/WorkloadPacker.ts"

/** A region of a tensor that travels in one piece. */
export interface Piece {
  readonly taskId: number
  readonly tensor: Tensor
  readonly byteLength: number
}

/** Pieces start at multiples of this, so that they stay aligned for the widest loads. */
const pieceAlignment = 16
const piecesPerBatch = 10_000

/** Batches of a flow, where it is long enough, so that packing, travelling and unpacking overlap. */
const batchesPerFlow = 16
const leastBatchBytes = 2 ** 20

/** A batch is shorter than a slot where the flow is short. */
const batchLimit = (flow: Flow, slotBytes: number): number =>
  Math.min(slotBytes, Math.max(leastBatchBytes, Math.ceil(flow.byteLength / batchesPerFlow)))

export const batchesOf = (
  errors: DriverErrors,
  flow: Flow,
  slotBytes: number
): Checked<ReadonlyArray<Batch<Piece>>> => {
  const batchBytes = batchLimit(flow, slotBytes)
  const pieces: Array<Piece> = []
  for (const { taskId, tensor } of flow.pairs) {
    for (const { region, byteLength } of segmentTensor(tensor.shape, tensor.dtype, batchBytes)) {
      const slice = sliceTensor(tensor, region)
      const detail = Result.isFailure(slice)
        ? `${slice.failure.detail}.`
        : byteLength > slotBytes
          ? `A row of ${byteLength} bytes does not fit a slot of ${slotBytes}. Raise slotBytes.`
          : undefined
      if (detail !== undefined || Result.isFailure(slice)) {
        return Result.fail(
          errors.fail("InvalidProgram", detail ?? "", { peer: flow.peer, taskId, op: "prepare", scope: "op" })
        )
      }
      pieces.push({ taskId, tensor: slice.success, byteLength })
    }
  }
  return Result.succeed(packWorkload(pieces, { batchBytes, batchItems: piecesPerBatch, alignment: pieceAlignment }))
}

/** A dense run for the copy engine. */
export interface Run {
  readonly destination: number
  readonly source: number
  readonly byteLength: number
}

export interface SlotMoves {
  /** Moves of one kernel; empty where there are none. */
  readonly table: BigUint64Array
  readonly runs: ReadonlyArray<Run>
}

/** Moves between the tensors of a batch and the slot at an address; dense runs from `runBytes` on apart. */
export const slotMoves = (
  errors: DriverErrors,
  device: Device,
  batch: Batch<Piece>,
  slotAddress: number,
  isReceiving: boolean,
  runBytes: number
): Checked<SlotMoves> => {
  const table = new MoveTable(batch.items.length)
  const runs: Array<Run> = []
  const slot = makeStorage({
    device,
    address: BigInt(slotAddress),
    byteLength: batch.byteLength,
    release: () => {}
  })
  for (const { item, offset } of batch.items) {
    const { tensor, taskId } = item
    const wrong = (detail: string) =>
      Result.fail(errors.fail("InvalidProgram", `${detail}.`, { taskId, op: "prepare", scope: "op" }))
    const dense = tensorView(slot, tensor.dtype, tensor.shape, { byteOffset: offset })
    if (Result.isFailure(dense)) return wrong(dense.failure.detail)
    const move = byteMove(isReceiving ? { dst: tensor, src: dense.success } : { dst: dense.success, src: tensor })
    if (Result.isFailure(move)) return wrong(move.failure.detail)
    const { dst, src } = move.success
    const [destination, source] = [dst, src].map((side) => Number(side.storage.address) + side.byteOffset) as [
      number,
      number
    ]
    const byteLength = tensorByteLength(dst)
    if (!isContiguous(dst) || !isContiguous(src)) table.add(dst, src, destination, source)
    else if (byteLength < runBytes) table.addRun(destination, source, byteLength)
    else runs.push({ destination, source, byteLength })
  }
  return Result.succeed({ table: table.table, runs })
}
