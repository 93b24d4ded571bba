// SPDX-License-Identifier: Apache-2.0
/**
 * Cuts regions into pieces that follow each other in dense memory, so that files are read, compared and written in
 * bounded memory with progress in between.
 */
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Region, regionShape } from "@tensorferry/core/base/Region"
import { splitPart } from "@tensorferry/core/planner/Bucketing"

/** Bytes of one piece: large enough to keep a disk busy, small enough to report progress several times a second. */
export const boundedBytes = 16 * 1024 * 1024

/** Portions of files under way at once for tensors of a device: a rank of the command has as many threads for files. */
export const deviceInFlight = 8

/** A region of a tensor whose bytes follow those of the piece before it. */
export interface Piece {
  /** Region of the whole tensor. */
  readonly region: Region
  /** Where the piece lies in the dense bytes of the region it was cut from. */
  readonly start: number
  readonly end: number
}

/**
 * A region in portions of at most `limit` bytes, in row-major order, each with the bytes of the whole at which it begins
 * and ends.
 */
export const boundedRegions = (dtype: DType, region: Region, limit = boundedBytes): ReadonlyArray<Piece> => {
  const shape = regionShape(region)
  if (shape.includes(0)) return []
  let start = 0
  return splitPart({ dtype, shape }, limit).map((local) => {
    const end = start + byteLengthOf(dtype, elementCount(regionShape(local)))
    const piece = {
      region: local.map(([from, to], dim) => [from + region[dim]![0], to + region[dim]![0]] as const),
      start,
      end
    }
    start = end
    return piece
  })
}
