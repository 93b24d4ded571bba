// SPDX-License-Identifier: Apache-2.0
/**
 * Flows cut into batches, as both ends cut them, and the moves between a batch's tensors and a slot.
 */

import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import type { Device } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, sliceTensor, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { Flow } from "@tensorferry/native/driver/Flows"
import { type ByteRun, MoveTable } from "@tensorferry/native/MoveTable"
import * as Result from "effect/Result"
import { segmentTensor } from "./planning/TaskSegmenter.ts"
import { type Batch, packWorkload } from "./planning/WorkloadPacker.ts"

/** A region of a tensor that travels in one piece. */
export interface Piece {
  readonly taskId: number
  readonly tensor: Tensor
  readonly byteLength: number
  readonly theirs: PieceThere
}

/** The same region at the peer. */
export interface PieceThere {
  /** Index into the memories of the peer's list. */
  readonly memory: number
  readonly byteOffset: number
  readonly strides: ReadonlyArray<number>
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
  for (const { taskId, tensor, theirs } of flow.pairs) {
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
      const { memory, byteOffset, strides } = theirs
      const first = region.reduce((sum, [start], dim) => sum + start * strides[dim]!, 0)
      pieces.push({
        taskId,
        tensor: slice.success,
        byteLength,
        theirs: { memory, byteOffset: byteOffset + byteLengthOf(tensor.dtype, first), strides }
      })
    }
  }
  return Result.succeed(packWorkload(pieces, { batchBytes, batchItems: piecesPerBatch, alignment: pieceAlignment }))
}

export interface SlotMoves {
  /** Moves of one kernel; empty where there are none. */
  readonly table: BigUint64Array
  readonly runs: ReadonlyArray<ByteRun>
}

/** Where the other end of a piece lies, as it can be reached here. */
export type OtherEnd = (piece: Piece, offset: number) => Result.Result<Tensor, { readonly detail: string }>

/** Whether pieces of the batch begin at whole bytes wherever they lie: only then can they be written to in place. */
export const hasWholeElements = ({ items }: Batch<Piece>): boolean =>
  items.every(({ item }) => bitsOf(item.tensor.dtype) % 8 === 0)

/** Packed in the slot at an address. */
export const inSlot = (device: Device, { byteLength }: Batch<Piece>, address: number): OtherEnd => {
  const slot = makeStorage({ device, address: BigInt(address), byteLength, release: () => {} })
  return ({ tensor }, byteOffset) => tensorView(slot, tensor.dtype, tensor.shape, { byteOffset })
}

/** In the peer's own tensors; `storageOf` gives its memories as they are mapped here. */
export const inPlace =
  (storageOf: (memory: number) => Storage): OtherEnd =>
  ({ tensor, theirs }) =>
    tensorView(storageOf(theirs.memory), tensor.dtype, tensor.shape, theirs)

/** Moves between the tensors of a batch and their other ends; dense runs from `runBytes` on apart. */
export const batchMoves = (
  errors: DriverErrors,
  batch: Batch<Piece>,
  otherEnd: OtherEnd,
  isReceiving: boolean,
  runBytes: number
): Checked<SlotMoves> => {
  const table = new MoveTable(batch.items.length)
  const runs: Array<ByteRun> = []
  for (const { item, offset } of batch.items) {
    const { tensor, taskId } = item
    const wrong = (detail: string) =>
      Result.fail(errors.fail("InvalidProgram", `${detail}.`, { taskId, op: "prepare", scope: "op" }))
    const other = otherEnd(item, offset)
    if (Result.isFailure(other)) return wrong(other.failure.detail)
    const move = byteMove(isReceiving ? { dst: tensor, src: other.success } : { dst: other.success, src: tensor })
    if (Result.isFailure(move)) return wrong(move.failure.detail)
    const run = table.addUnlessRun(move.success, runBytes)
    if (run !== undefined) runs.push(run)
  }
  return Result.succeed({ table: table.table, runs })
}
