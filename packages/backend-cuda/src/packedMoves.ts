// SPDX-License-Identifier: Apache-2.0
/**
 * What goes by collectives: windows of packed messages with the staging that they need, as this rank has them.
 *
 * Invariants: which pieces, windows and operations there are is a function of what both ends know; only addresses are this
 * rank's own. Window k uses slot k modulo 2, so that one is packed while the other is sent.
 */

import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, regionShape } from "@tensorferry/core/base/Region"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, sliceTensor, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { cutShape } from "@tensorferry/gpu/stagingBoxes"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { Flow, Pair } from "@tensorferry/native/driver/Flows"
import { MoveTable } from "@tensorferry/native/MoveTable"
import * as Result from "effect/Result"
import {
  alignUp,
  cutWindows,
  longestPiece,
  packAlignment,
  slotAlignment,
  type WindowLimits,
  type WindowPiece
} from "./planning/windows.ts"

interface Piece extends WindowPiece {
  readonly tensor: Tensor
  /** An operation on the tensor's own memory. */
  readonly isFromMemory: boolean
  readonly taskId: number
}

/** One send or receive. */
export interface Operation {
  readonly address: number
  readonly byteLength: number
}

/** A flow's share of one window. */
export interface WindowShare {
  readonly peer: number
  readonly isReceiving: boolean
  /** Between the tensors and staging; empty where nothing is staged here. */
  readonly table: BigUint64Array
  readonly operations: ReadonlyArray<Operation>
  /** Bytes of the tensors. */
  readonly byteLength: number
}

/** What one group moves. */
export interface GroupWindow {
  readonly shares: ReadonlyArray<WindowShare>
}

/** Windows whose places in staging are known, before staging is there. */
export interface PackedPlan {
  readonly stagingBytes: number
  readonly windowCount: number
  readonly windows: (staging: Storage | undefined) => Checked<ReadonlyArray<GroupWindow>>
}

const piecesOf = (
  errors: DriverErrors,
  flow: Flow,
  limits: WindowLimits,
  directBytes: number
): Checked<ReadonlyArray<Piece>> => {
  const pieces: Array<Piece> = []
  const limit = longestPiece(limits)
  const cut = ({ tensor, taskId, byteLength, isDenseHere, isDenseThere }: Pair): Checked<void> => {
    if (isDenseHere && isDenseThere && byteLength >= directBytes) {
      pieces.push({ tensor, taskId, byteLength, isOwn: true, isStaged: false, isFromMemory: true })
      return Result.succeed(undefined)
    }
    const { shape, dtype } = tensor
    const regions = byteLength <= limit ? [fullRegion(shape)] : cutShape(shape, bitsOf(dtype), limit)
    for (const region of regions) {
      const slice = sliceTensor(tensor, region)
      if (Result.isFailure(slice)) {
        const facts = { peer: flow.peer, taskId, op: "prepare", scope: "op" } as const
        return Result.fail(errors.fail("InvalidProgram", `${slice.failure.detail}.`, facts))
      }
      const length = byteLengthOf(dtype, elementCount(regionShape(region)))
      const isOwn = length >= directBytes && (isDenseHere || isDenseThere)
      const isFromMemory = isOwn && isDenseHere
      pieces.push({ tensor: slice.success, taskId, byteLength: length, isOwn, isStaged: true, isFromMemory })
    }
    return Result.succeed(undefined)
  }
  for (const pair of flow.pairs) {
    const done = cut(pair)
    if (Result.isFailure(done)) return Result.fail(done.failure)
  }
  return Result.succeed(pieces)
}

/** A flow's pieces in one window: staged ones with their offsets from the beginning of the share. */
interface Layout {
  readonly flow: Flow
  readonly pieces: ReadonlyArray<Piece>
  readonly stagedBytes: number
  readonly packedBytes: number
}

const layoutOf = (flow: Flow, pieces: ReadonlyArray<Piece>): Layout => {
  let packedBytes = 0
  let ownBytes = 0
  for (const piece of pieces) {
    if (!piece.isOwn) packedBytes += alignUp(piece.byteLength, packAlignment)
    else if (!piece.isFromMemory) ownBytes += alignUp(piece.byteLength, slotAlignment)
  }
  return { flow, pieces, packedBytes, stagedBytes: alignUp(packedBytes, slotAlignment) + ownBytes }
}

const shareOf = (
  errors: DriverErrors,
  { flow, pieces, packedBytes }: Layout,
  staging: Storage | undefined,
  byteOffset: number
): Checked<WindowShare> => {
  const { peer, isReceiving } = flow
  const table = new MoveTable(pieces.length)
  const own: Array<Operation> = []
  let packedAt = byteOffset
  let ownAt = byteOffset + alignUp(packedBytes, slotAlignment)
  let byteLength = 0
  const stagingAddress = Number(staging?.address ?? 0n)

  for (const piece of pieces) {
    byteLength += piece.byteLength
    const { tensor, taskId } = piece
    if (piece.isFromMemory) {
      own.push({ address: Number(tensor.storage.address) + tensor.byteOffset, byteLength: piece.byteLength })
      continue
    }
    const at = piece.isOwn ? ownAt : packedAt
    if (piece.isOwn) {
      own.push({ address: stagingAddress + at, byteLength: piece.byteLength })
      ownAt += alignUp(piece.byteLength, slotAlignment)
    } else packedAt += alignUp(piece.byteLength, packAlignment)
    const wrong = (detail: string) =>
      Result.fail(errors.fail("InvalidProgram", `${detail}.`, { peer, taskId, op: "prepare", scope: "op" }))
    if (staging === undefined) return wrong("There is no staging")
    const dense = tensorView(staging, tensor.dtype, tensor.shape, { byteOffset: at })
    if (Result.isFailure(dense)) return wrong(dense.failure.detail)
    const move = byteMove(isReceiving ? { dst: tensor, src: dense.success } : { dst: dense.success, src: tensor })
    if (Result.isFailure(move)) return wrong(move.failure.detail)
    table.addUnlessRun(move.success)
  }
  const packed = packedBytes === 0 ? [] : [{ address: stagingAddress + byteOffset, byteLength: packedBytes }]
  return Result.succeed({ peer, isReceiving, table: table.table, operations: [...packed, ...own], byteLength })
}

export const packedPlan = (
  errors: DriverErrors,
  flows: ReadonlyArray<Flow>,
  limits: WindowLimits,
  directBytes: number
): Checked<PackedPlan> => {
  const windows: Array<Array<Layout>> = []
  for (const flow of flows) {
    const pieces = piecesOf(errors, flow, limits, directBytes)
    if (Result.isFailure(pieces)) return Result.fail(pieces.failure)
    for (const [number, { begin, end }] of cutWindows(pieces.success, limits).entries()) {
      windows[number] ??= []
      windows[number].push(layoutOf(flow, pieces.success.slice(begin, end)))
    }
  }
  const bytesOf = (layouts: ReadonlyArray<Layout>, isReceiving: boolean): number =>
    layouts.reduce((sum, layout) => sum + (layout.flow.isReceiving === isReceiving ? layout.stagedBytes : 0), 0)
  const slotBytes = (isReceiving: boolean, slot: number): number =>
    windows.reduce((most, layouts, k) => (k % 2 === slot ? Math.max(most, bytesOf(layouts, isReceiving)) : most), 0)
  /** Slots lie one after the other: two for sending, two for receiving. */
  const slots = [slotBytes(false, 0), slotBytes(false, 1), slotBytes(true, 0), slotBytes(true, 1)] as const
  const slotStarts = [0, slots[0], slots[0] + slots[1], slots[0] + slots[1] + slots[2]] as const
  const stagingBytes = slotStarts[3] + slots[3]

  return Result.succeed({
    stagingBytes,
    windowCount: windows.length,
    windows: (staging) => {
      const groups: Array<GroupWindow> = []
      for (const [k, layouts] of windows.entries()) {
        const next = [slotStarts[(k % 2) as 0 | 1], slotStarts[(2 + (k % 2)) as 2 | 3]]
        const shares: Array<WindowShare> = []
        for (const layout of layouts) {
          const side = layout.flow.isReceiving ? 1 : 0
          const share = shareOf(errors, layout, staging, next[side]!)
          if (Result.isFailure(share)) return Result.fail(share.failure)
          next[side]! += layout.stagedBytes
          shares.push(share.success)
        }
        groups.push({ shares })
      }
      return Result.succeed(groups)
    }
  })
}
