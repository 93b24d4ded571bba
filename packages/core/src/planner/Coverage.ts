// SPDX-License-Identifier: Apache-2.0
/**
 * Proves that regions cover an array exactly once, without visiting elements.
 *
 * A sum of boxes equals one big box exactly when the signed corners agree: give each corner of a box the sign
 * (-1)^(number of its lower ends) and add them up per point; what is left must be the big box's own corners. (The mixed
 * partial derivative of an indicator function is the signed measure of its corners.) Cost: regions x 2^(cut dimensions).
 */
import { formatRegion, formatShape, intersect, type Region, type Shape } from "../base/Region.ts"

/** Corners that are visited at most, beyond the few of regions that cut up to three dimensions. */
const mostCorners = 2 ** 20

/** Dimensions in which more than this many are cut are refused: no tensor has them, and the cost doubles with each. */
const mostCutDimensions = 12

/** Undefined where the cover is exact, else what is wrong with it, naming an element where one can be found quickly. */
export const coverageFault = (shape: Shape, regions: ReadonlyArray<Region>): string | undefined => {
  const odd = regions.find((region) => region.length !== shape.length)
  if (odd !== undefined) return `Region ${formatRegion(odd)} has other dimensions than ${formatShape(shape)}.`
  if (shape.includes(0)) return undefined
  const live = regions.filter((region) => region.every(([start, stop]) => start < stop))
  if (live.length === 0) return `No element of ${formatShape(shape)} is written.`
  const cut = [...shape.keys()].filter((dim) =>
    live.some((region) => region[dim]![0] !== 0 || region[dim]![1] !== shape[dim])
  )
  if (cut.length > mostCutDimensions)
    return `Regions cut ${cut.length} dimensions; at most ${mostCutDimensions} are checked.`
  if (cut.length > 3 && live.length * 2 ** cut.length > mostCorners)
    return `Its ${live.length} regions cut ${cut.length} dimensions, which is too much to check.`
  const measure = new Map<string, number>()
  const addCorners = (region: Region, weight: number): void => {
    for (let corner = 0; corner < 2 ** cut.length; corner++) {
      let sign = weight
      const point: Array<number> = []
      for (const [bit, dim] of cut.entries()) {
        const upper = ((corner >> bit) & 1) as 0 | 1
        point.push(region[dim]![upper])
        if (upper === 0) sign = -sign
      }
      const key = point.join(",")
      const sum = (measure.get(key) ?? 0) + sign
      if (sum === 0) measure.delete(key)
      else measure.set(key, sum)
    }
  }
  for (const region of live) addCorners(region, 1)
  addCorners(
    shape.map((length) => [0, length] as const),
    -1
  )
  return measure.size === 0 ? undefined : explain(shape, live)
}

const explain = (shape: Shape, regions: ReadonlyArray<Region>): string => {
  const sorted = [...regions].sort((a, b) => {
    for (const [dim, interval] of a.entries()) {
      if (interval[0] !== b[dim]![0]) return interval[0] - b[dim]![0]
    }
    return 0
  })
  const window = sorted.slice(0, 500)
  for (const [at, region] of window.entries()) {
    for (const other of window.slice(at + 1)) {
      const common = intersect(region, other)
      if (common !== undefined)
        return `Region ${formatRegion(common)} of ${formatShape(shape)} is written more than once.`
    }
  }
  const written = regions.reduce(
    (sum, region) => sum + region.reduce((size, [start, stop]) => size * (stop - start), 1),
    0
  )
  const wanted = shape.reduce((size, length) => size * length, 1)
  const rows = firstGap(shape, sorted)
  return `${Math.min(written, wanted)} of ${wanted} elements of ${formatShape(shape)} are written${rows}.`
}

/** Where only one dimension is cut, the first index that nobody writes. */
const firstGap = (shape: Shape, regions: ReadonlyArray<Region>): string => {
  const cut = [...shape.keys()].filter((dim) =>
    regions.some((region) => region[dim]![0] !== 0 || region[dim]![1] !== shape[dim])
  )
  if (cut.length !== 1) return ""
  const dim = cut[0]!
  let reached = 0
  for (const [start, stop] of regions.map((region) => region[dim]!).sort((a, b) => a[0] - b[0])) {
    if (start > reached) return `; index ${reached} to ${start} of dimension ${dim} never`
    reached = Math.max(reached, stop)
  }
  return reached < shape[dim]! ? `; index ${reached} to ${shape[dim]} of dimension ${dim} never` : ""
}
