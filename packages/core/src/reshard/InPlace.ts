// SPDX-License-Identifier: Apache-2.0
/**
 * Updates whose destination shares memory with their source: tells what may be overwritten before, or while, it is read.
 * Pure.
 *
 * Invariant: a region is left alone only where nothing that this rank writes can touch it. Ranges of addresses are
 * compared, so that a region which merely lies between written ones may be taken for touched; that costs memory, never
 * bytes.
 */
import { formatDevice } from "../tensor/Device.ts"
import { memoryRange } from "../tensor/MemoryRange.ts"
import type { Tensor } from "../tensor/Tensor.ts"

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
