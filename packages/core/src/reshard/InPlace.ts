// SPDX-License-Identifier: Apache-2.0
/**
 * Updates whose destination shares memory with their source: finds the regions that would be overwritten before, or
 * while, others read them. Pure.
 *
 * Invariant: a region is left alone only where nothing that this rank writes can touch it. Ranges of addresses are
 * compared, so that a region which merely lies between written ones may be taken for touched; that costs memory, never
 * bytes.
 */
import * as Result from "effect/Result"
import type { Rank } from "../base/Ids.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { formatDevice } from "../tensor/Device.ts"
import { isSameView, memoryRange } from "../tensor/MemoryRange.ts"
import { isQuantized } from "../tensor/QuantizedTensor.ts"
import { sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import type { Writeback } from "./Writeback.ts"

/** One tensor to send. */
export interface Outgoing {
  readonly op: TransferOp
  readonly part: number
  readonly tensor: Tensor
}

/** Everything that a writeback writes to, buffers of its own included. */
const writtenBy = (writeback: Writeback): ReadonlyArray<Tensor> => {
  if (writeback._tag === "Direct") return writeback.buffers
  if (writeback._tag === "Copy") return [writeback.destination]
  const { tensor, region } = writeback.transformOp
  if (isQuantized(tensor)) return [...writeback.buffers, tensor.data, tensor.scale]
  const view = sliceTensor(tensor, region)
  return [...writeback.buffers, Result.isSuccess(view) ? view.success : tensor]
}

/** What a rank receives from itself at the very same place does not change anything. */
const changes = (rank: Rank, sends: ReadonlyArray<Outgoing>, writebacks: ReadonlyArray<Writeback>) => {
  const own = new Map(
    sends.flatMap(({ op, part, tensor }) => (op.peerRank === rank && part === 0 ? [[op.taskId, tensor]] : []))
  )
  return writebacks.flatMap((writeback) => {
    const sent = writeback.op.peerRank === rank ? own.get(writeback.op.taskId) : undefined
    const isIdle = writeback._tag === "Direct" && sent !== undefined && isSameView(sent, writeback.buffers[0])
    return isIdle ? [] : writtenBy(writeback)
  })
}

/** Tells whether a view may be touched by any of the written ones. */
export const touching = (written: ReadonlyArray<Tensor>): ((tensor: Tensor) => boolean) => {
  const byDevice = new Map<string, Array<readonly [bigint, bigint]>>()
  for (const tensor of written) {
    const device = formatDevice(tensor.device)
    const ranges = byDevice.get(device) ?? []
    ranges.push(memoryRange(tensor))
    byDevice.set(device, ranges)
  }
  const devices = new Map(
    [...byDevice].map(([device, ranges]) => {
      const sorted = ranges.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
      // The furthest end among all ranges that start no later.
      let furthest = 0n
      const ends = sorted.map(([, end]) => {
        furthest = end > furthest ? end : furthest
        return furthest
      })
      return [device, { starts: sorted.map(([start]) => start), ends }]
    })
  )
  return (tensor) => {
    const ranges = devices.get(formatDevice(tensor.device))
    if (ranges === undefined) return false
    const [start, end] = memoryRange(tensor)
    let [low, high] = [0, ranges.starts.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (ranges.starts[middle]! < end) low = middle + 1
      else high = middle
    }
    return low > 0 && ranges.ends[low - 1]! > start
  }
}

/** The sends whose memory this rank's own update overwrites. */
export const overwrittenSends = (
  rank: Rank,
  sends: ReadonlyArray<Outgoing>,
  writebacks: ReadonlyArray<Writeback>
): ReadonlySet<Outgoing> => {
  const isTouched = touching(changes(rank, sends, writebacks))
  return new Set(sends.filter(({ tensor }) => isTouched(tensor)))
}
