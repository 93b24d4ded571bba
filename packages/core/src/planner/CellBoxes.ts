// SPDX-License-Identifier: Apache-2.0
/**
 * Ranges of cells as boxes. The cells that two shards share are numbered row-major over their dimensions; a range of
 * numbers is cut into a few boxes, and a box into the regions that lie densely in both shards.
 */
import { elementCount, type Interval, type Region } from "../base/Region.ts"
import type { Overlap } from "./MeshGrid.ts"

/** At most `2 * dimensions - 1` boxes that make up the cells numbered `start` to `stop` of an array of `extents`. */
export const rangeBoxes = (extents: ReadonlyArray<number>, [start, stop]: Interval): ReadonlyArray<Region> => {
  if (start >= stop) return []
  const [extent, ...inner] = extents
  if (extent === undefined) return [[]]
  const row = elementCount(inner)
  if (start === 0 && stop === extent * row) return [extents.map((length) => [0, length] as const)]
  const boxes: Array<Region> = []
  const partOf = (at: number, from: number, to: number): void => {
    for (const box of rangeBoxes(inner, [from, to])) boxes.push([[at, at + 1], ...box])
  }
  const [first, last] = [Math.floor(start / row), Math.floor((stop - 1) / row)]
  if (first === last && stop - start < row) {
    partOf(first, start - first * row, stop - first * row)
    return boxes
  }
  const [fullStart, fullStop] = [Math.ceil(start / row), Math.floor(stop / row)]
  if (fullStart > first) partOf(first, start - first * row, row)
  if (fullStart < fullStop) boxes.push([[fullStart, fullStop], ...inner.map((length) => [0, length] as const)])
  if (fullStop <= last) partOf(last, 0, stop - last * row)
  return boxes
}

/** A region that is dense in both shards, in elements of each, with the first cell of each. */
export interface SharedRegion {
  readonly source: Region
  readonly target: Region
  readonly sourceCell: ReadonlyArray<number>
  readonly targetCell: ReadonlyArray<number>
}

interface Segment {
  readonly source: Interval
  readonly target: Interval
  readonly sourceCell: number
  readonly targetCell: number
}

const segmentsOf = (overlap: Overlap, [start, stop]: Interval): ReadonlyArray<Segment> => {
  const segments: Array<Segment> = []
  for (const run of overlap.runs) {
    const first = Math.max(start, run.cellStart)
    const last = Math.min(stop, run.cellStart + run.cells)
    if (first >= last) continue
    const cell = run.length / run.cells
    const skipped = first - run.cellStart
    const length = (last - first) * cell
    const source = run.sourceStart + skipped * cell
    const target = run.targetStart + skipped * cell
    segments.push({
      source: [source, source + length],
      target: [target, target + length],
      sourceCell: run.sourceCell + skipped,
      targetCell: run.targetCell + skipped
    })
  }
  return segments
}

/** The regions of a box of cells, row-major. */
export const boxRegions = (overlaps: ReadonlyArray<Overlap>, box: Region): ReadonlyArray<SharedRegion> => {
  const segments = overlaps.map((overlap, dim) => segmentsOf(overlap, box[dim]!))
  const at = segments.map(() => 0)
  const regions: Array<SharedRegion> = []
  while (true) {
    const chosen = segments.map((list, dim) => list[at[dim]!]!)
    regions.push({
      source: chosen.map((segment) => segment.source),
      target: chosen.map((segment) => segment.target),
      sourceCell: chosen.map((segment) => segment.sourceCell),
      targetCell: chosen.map((segment) => segment.targetCell)
    })
    let dim = segments.length - 1
    while (dim >= 0 && ++at[dim]! === segments[dim]!.length) at[dim--] = 0
    if (dim < 0) return regions
  }
}
