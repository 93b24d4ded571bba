// SPDX-License-Identifier: Apache-2.0
/**
 * Boxes of array indices: half-open intervals, one per dimension. Owns all interval arithmetic of planners and checks.
 *
 * Invariant: `0 <= start <= stop`; an interval with `start === stop` is empty, and so is a region that has one.
 */
import * as Schema from "effect/Schema"

const Index = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }))

/** `[start, stop)` along one dimension. */
export const Interval = Schema.Tuple([Index, Index]).check(
  Schema.makeFilter(([start, stop]) => start <= stop || "start must not exceed stop")
)
/** Indices of one dimension: from `start` up to, but without, `stop`. */
export type Interval = readonly [start: number, stop: number]

/** Dimensions of a tensor, as many as PyTorch has. Whatever reads shapes refuses more: each costs memory, and holds no bytes. */
export const dimensionLimit = 64

/** One interval per dimension; the empty list is the single element of a scalar. */
export const Region = Schema.Array(Interval).check(Schema.isMaxLength(dimensionLimit))
/** A box of a tensor: one interval for each dimension. */
export type Region = ReadonlyArray<Interval>

/** Lengths per dimension. */
export const Shape = Schema.Array(Index).check(Schema.isMaxLength(dimensionLimit))
/** Lengths of a tensor's dimensions; empty for a single element. */
export type Shape = ReadonlyArray<number>

/** Indices of a half-open interval. */
export const lengthOf = (interval: Interval): number => interval[1] - interval[0]

/** The common part of two half-open intervals; undefined where there is none. */
export const intersectIntervals = (a: Interval, b: Interval): Interval | undefined => {
  const start = Math.max(a[0], b[0])
  const stop = Math.min(a[1], b[1])
  return start < stop ? [start, stop] : undefined
}

/** The region that covers an array of this shape. */
export const fullRegion = (shape: Shape): Region => shape.map((length) => [0, length] as const)

/** The shape of the view that a region cuts out. */
export const regionShape = (region: Region): Shape => region.map(lengthOf)

/** Number of elements; 1 for a scalar. The caller checks shapes against `isRepresentable` first. */
export const elementCount = (shape: Shape): number => shape.reduce((product, length) => product * length, 1)

/** False where there are too many dimensions, or the number of bits cannot be an exact integer (2^53). */
export const isRepresentable = (shape: Shape, bitsPerElement: number): boolean => {
  if (shape.length > dimensionLimit) return false
  if (shape.includes(0)) return shape.every((length) => Number.isSafeInteger(length) && length >= 0)
  let product = 1
  for (const length of shape) {
    if (!Number.isSafeInteger(length) || length < 0) return false
    product *= length
    if (product * bitsPerElement > Number.MAX_SAFE_INTEGER) return false
  }
  return true
}

/** Whether the region has no elements. */
export const isEmptyRegion = (region: Region): boolean => region.some(([start, stop]) => start >= stop)

/** Whether the region lies within a tensor of this shape. */
export const isInside = (region: Region, shape: Shape): boolean =>
  region.length === shape.length &&
  region.every(([start, stop], dim) => start >= 0 && start <= stop && stop <= shape[dim]!)

/** The elements of both; undefined where there are none. */
export const intersect = (a: Region, b: Region): Region | undefined => {
  const out: Array<Interval> = []
  for (let dim = 0; dim < a.length; dim++) {
    const common = intersectIntervals(a[dim]!, b[dim]!)
    if (common === undefined) return undefined
    out.push(common)
  }
  return out
}

/** Whether both have the same lengths. */
export const equalShapes = (a: Shape, b: Shape): boolean =>
  a.length === b.length && a.every((length, dim) => length === b[dim])

/** Whether both name the same elements. */
export const equalRegions = (a: Region, b: Region): boolean =>
  a.length === b.length && a.every(([start, stop], dim) => start === b[dim]![0] && stop === b[dim]![1])

/** Strides in elements of a dense row-major array. */
export const rowMajorStrides = (shape: Shape): ReadonlyArray<number> => {
  const strides = new Array<number>(shape.length)
  let step = 1
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    strides[dim] = step
    step *= Math.max(1, shape[dim]!)
  }
  return strides
}

/**
 * Cuts `length` indices into `parts` chunks of `ceil(length / parts)`; later chunks are shorter or empty. An empty chunk
 * lies at `[length, length)`, so it never shares an offset with a real one. (The convention of `torch.chunk` and DTensor.)
 */
export const chunkInterval = (length: number, parts: number, index: number): Interval => {
  const size = Math.ceil(length / parts)
  return [Math.min(length, index * size), Math.min(length, (index + 1) * size)]
}

/** As `[2,8]`; of more dimensions than a tensor has, only how many. */
export const formatShape = (shape: Shape): string =>
  shape.length > dimensionLimit ? `[${shape.length} dimensions]` : `[${shape.join(",")}]`

/** As `[0:2, 4:8]`. */
export const formatRegion = (region: Region): string =>
  region.length === 0 ? "[]" : `[${region.map(([start, stop]) => `${start}:${stop}`).join(", ")}]`
