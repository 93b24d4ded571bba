// SPDX-License-Identifier: Apache-2.0
/** Copies between a region of a dense row-major array and bytes that hold just that region. */
import type { RegionRuns } from "./checkpoint/RegionRuns.ts"

/** The region's own bytes where it is one run of the array, else undefined. */
export const asOneRun = (runs: RegionRuns, array: Uint8Array): Uint8Array | undefined => {
  if (runs.runCount > 1) return undefined
  const offset = runs.runCount === 0 ? 0 : runs.walk().offset()
  return array.subarray(offset, offset + runs.runBytes)
}

const eachRun = (runs: RegionRuns, visit: (offset: number, dense: number) => void): void => {
  const walk = runs.walk()
  for (let run = 0; run < runs.runCount; run++) {
    visit(walk.offset(), run * runs.runBytes)
    walk.advance()
  }
}

/** Copies the dense bytes of a region to their places in the array. */
export const scatter = (runs: RegionRuns, dense: Uint8Array, array: Uint8Array): void =>
  eachRun(runs, (offset, start) => array.set(dense.subarray(start, start + runs.runBytes), offset))

/** Copies a region out of the array. */
export const gather = (runs: RegionRuns, array: Uint8Array, dense: Uint8Array): void =>
  eachRun(runs, (offset, start) => dense.set(array.subarray(offset, offset + runs.runBytes), start))
