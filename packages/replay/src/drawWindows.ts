// SPDX-License-Identifier: Apache-2.0
/**
 * Which windows a batch on a device consists of: a pure function of seed, tick, the ring's words and weights, and where
 * episodes end. Kernels give the same, bit by bit; windows of one row drawn uniformly are those of the ring on the host.
 */
import { rowDraws } from "@tensorferry/core/replay/ReplaySampling"
import { candidateLimit, type RingSample } from "@tensorferry/core/service/ReplayRingKernels"
import type { RingModel } from "./RingModel.ts"

/** What of a sample fixes its windows. */
export type WindowRequest = Pick<RingSample, "seed" | "tick" | "count" | "window" | "draws" | "episodes">

/** Windows that were drawn. */
export interface DrawnWindows {
  /** First row of each; as many as were asked for, of which the first `drawn` mean anything. */
  readonly positions: BigInt64Array
  /** Rows of each up to the end of its episode. */
  readonly lengths: Uint32Array
  readonly drawn: number
}

/** Bits that a number of 64 bits has above its highest one. */
const leadingZeros = (value: bigint): number => (value === 0n ? 64 : 64 - value.toString(2).length)

/** Rows from one on to the end of its episode, at most those of a window. `isEnd` says whether a row is the last of one. */
const lengthUpToEnd = (position: number, window: number, isEnd: (position: number) => boolean): number => {
  for (let length = 1; length < window; length++) if (isEnd(position + length - 1)) return length
  return window
}

/** Candidates of one sample, one by one: positions, or undefined for a number that means no row. */
const candidatesOf = (model: RingModel, { draws, seed, tick, window }: WindowRequest) => {
  const { next32 } = rowDraws(seed, tick)
  const { first, written: end } = model
  const range = end - first - (window - 1)
  if (range < 1) return undefined
  if (draws === "uniform") {
    const shift = Math.clz32(range - 1)
    return () => {
      if (range === 1) return first
      const drawn = next32() >>> shift
      return drawn < range ? first + drawn : undefined
    }
  }
  const { total } = model.weights
  if (total === 0n) return undefined
  const shift = BigInt(Math.min(63, leadingZeros(total - 1n)))
  const base = first - (first % model.capacity)
  return () => {
    const high = BigInt(next32())
    const drawn = ((high << 32n) | BigInt(next32())) >> shift
    if (drawn >= total) return undefined
    const position = base + model.weights.find(drawn)
    const row = position < first ? position + model.capacity : position
    return row + window <= end ? row : undefined
  }
}

/** Draws the windows of a batch. */
export const drawWindows = (
  model: RingModel,
  request: WindowRequest,
  isEnd: (position: number) => boolean
): DrawnWindows => {
  const { count, episodes, window } = request
  const positions = new BigInt64Array(count)
  const lengths = new Uint32Array(count)
  const next = candidatesOf(model, request)
  if (next === undefined) return { positions, lengths, drawn: 0 }
  let drawn = 0
  for (let left = candidateLimit(count); left > 0 && drawn < count; left--) {
    const position = next()
    if (position === undefined) continue
    const length = episodes === "cross" ? window : lengthUpToEnd(position, window, isEnd)
    if (episodes === "whole" && length < window) continue
    positions[drawn] = BigInt(position)
    lengths[drawn] = length
    drawn += 1
  }
  return { positions, lengths, drawn }
}
