// SPDX-License-Identifier: Apache-2.0
/**
 * The byte runs that a region of a dense row-major array consists of, in ascending order, without listing them: a region
 * may have more runs than memory could hold.
 *
 * Invariant: all runs have one length, none touches the next, and their bytes in order are the dense region.
 */

import {
  elementCount,
  formatRegion,
  formatShape,
  isEmptyRegion,
  lengthOf,
  type Region,
  rowMajorStrides,
  type Shape
} from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"

/** A position among the runs. */
export interface RunWalk {
  /** First byte of the run here, counted from the start of the array. Meaningless after the last run. */
  readonly offset: () => number
  /** Goes to the next run. */
  readonly advance: () => void
}

/** The runs of bytes of which a region consists, in the order of the file. */
export interface RegionRuns {
  /** Bytes of each run; all are alike. */
  readonly runBytes: number
  /** Runs of the region. */
  readonly runCount: number
  /** Visits the runs in ascending order. */
  readonly walk: () => RunWalk
}

/** Cuts `region`, which lies inside `shape`, into runs. Fails, in words, where a run would begin or end inside a byte. */
export const regionRuns = (shape: Shape, region: Region, bits: number): Result.Result<RegionRuns, string> => {
  if (isEmptyRegion(region)) {
    return Result.succeed({ runBytes: 0, runCount: 0, walk: () => ({ offset: () => 0, advance: () => {} }) })
  }
  const strides = rowMajorStrides(shape)
  // Trailing dimensions that are taken whole belong to the run, and so does the one before them.
  let split = shape.length
  while (split > 0 && lengthOf(region[split - 1]!) === shape[split - 1]) split -= 1
  if (split > 0) split -= 1
  const inner = region.slice(split).map(lengthOf)
  const lengths = region.slice(0, split).map(lengthOf)
  const runBits = elementCount(inner) * bits
  const startBits = region.reduce((sum, [start], dim) => sum + start * strides[dim]!, 0) * bits
  const isCut =
    runBits % 8 !== 0 ||
    startBits % 8 !== 0 ||
    lengths.some((length, dim) => length > 1 && (strides[dim]! * bits) % 8 !== 0)
  if (isCut) return Result.fail(`region ${formatRegion(region)} of shape ${formatShape(shape)} is cut inside a byte`)
  const steps = lengths.map((_, dim) => (strides[dim]! * bits) / 8)
  return Result.succeed({
    runBytes: runBits / 8,
    runCount: elementCount(lengths),
    walk: () => {
      let offset = startBits / 8
      const index = new Array<number>(lengths.length).fill(0)
      return {
        offset: () => offset,
        advance: () => {
          for (let dim = lengths.length - 1; dim >= 0; dim--) {
            offset += steps[dim]!
            index[dim]! += 1
            if (index[dim]! < lengths[dim]!) return
            offset -= steps[dim]! * lengths[dim]!
            index[dim] = 0
          }
        }
      }
    }
  })
}
