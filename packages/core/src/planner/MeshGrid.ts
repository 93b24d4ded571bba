// SPDX-License-Identifier: Apache-2.0
/**
 * Where the shards of two layouts meet along one tensor dimension.
 *
 * Invariant: a run is a longest stretch that lies densely in one source shard and in one target shard; the runs of a pair
 * of shards ascend in both. Where the grid of cells divides the length, a run counts its cells; elsewhere it is one cell.
 * Cost: the number of intervals of both sides, never of elements.
 */
import type { Interval } from "../base/Region.ts"
import { type DimSplit, heldIntervals } from "../layout/ShardIntervals.ts"

export interface Run {
  /** In elements of the local shards. */
  readonly sourceStart: number
  readonly targetStart: number
  readonly length: number
  /** Place of the run's first cell among the pair's, and how many equal cells it has. */
  readonly cellStart: number
  readonly cells: number
  /** Place of its first cell in the local shards. */
  readonly sourceCell: number
  readonly targetCell: number
}

/** What one source shard and one target shard share. */
export interface Overlap {
  readonly source: number
  readonly target: number
  readonly runs: ReadonlyArray<Run>
  readonly cells: number
  /** Cells that the source shard shares with target shards before this one. */
  readonly cellsBefore: number
}

export interface DimGrid {
  /** True where the length is a whole number of cells. */
  readonly isEven: boolean
  /** Per source shard, what it shares with each target shard that it meets, ascending. */
  readonly bySource: ReadonlyArray<ReadonlyArray<Overlap>>
  /** The same per target shard. */
  readonly byTarget: ReadonlyArray<ReadonlyArray<Overlap>>
  readonly sourceLengths: ReadonlyArray<number>
  readonly targetLengths: ReadonlyArray<number>
}

/** Cells of a source shard. */
export const sourceCells = (grid: DimGrid, shard: number): number => {
  const last = grid.bySource[shard]!.at(-1)
  return last === undefined ? 0 : last.cellsBefore + last.cells
}

/** What a source shard and a target shard share; `undefined` where they do not meet. */
export const overlapOf = (grid: DimGrid, source: number, target: number): Overlap | undefined => {
  const partners = grid.bySource[source]!
  let [low, high] = [0, partners.length]
  while (low < high) {
    const middle = (low + high) >>> 1
    if (partners[middle]!.target < target) low = middle + 1
    else high = middle
  }
  return partners[low]?.target === target ? partners[low] : undefined
}

/** Shards along one dimension; 1 where nothing shards it. */
export const shardCount = (splits: ReadonlyArray<DimSplit>): number =>
  splits.reduce((count, { parts }) => count * parts, 1)

interface Held {
  readonly interval: Interval
  readonly shard: number
}

const heldByAll = (length: number, splits: ReadonlyArray<DimSplit>): ReadonlyArray<Held> => {
  const held: Array<Held> = []
  for (let shard = 0; shard < shardCount(splits); shard++) {
    const indices = new Array<number>(splits.length)
    let rest = shard
    for (let at = splits.length - 1; at >= 0; at--) {
      indices[at] = rest % splits[at]!.parts
      rest = Math.floor(rest / splits[at]!.parts)
    }
    for (const interval of heldIntervals(length, splits, indices)) held.push({ interval, shard })
  }
  return held.sort((a, b) => a.interval[0] - b.interval[0])
}

type OpenRun = { -readonly [Field in keyof Run]: Run[Field] }

interface OpenOverlap {
  readonly source: number
  readonly target: number
  readonly runs: Array<OpenRun>
  cells: number
  cellsBefore: number
}

/** The grid of a dimension of `length`, whose cells number `cellCount` where that divides it. */
export const dimGrid = (
  length: number,
  cellCount: number,
  source: ReadonlyArray<DimSplit>,
  target: ReadonlyArray<DimSplit>
): DimGrid => {
  const [sources, targets] = [heldByAll(length, source), heldByAll(length, target)]
  const sourceLengths = new Array<number>(shardCount(source)).fill(0)
  const targetLengths = new Array<number>(shardCount(target)).fill(0)
  const bySource = sourceLengths.map(() => [] as OpenOverlap[])
  const byTarget = targetLengths.map(() => [] as OpenOverlap[])
  const overlaps = new Map<number, OpenOverlap>()
  const sourceRuns = sourceLengths.map(() => 0)
  const targetRuns = targetLengths.map(() => 0)
  const isEven = length % cellCount === 0
  const cellLength = length / cellCount
  let [at, to] = [0, 0]
  for (let start = 0; start < length; ) {
    const [from, into] = [sources[at]!, targets[to]!]
    const stop = Math.min(from.interval[1], into.interval[1])
    const [sourceStart, targetStart] = [sourceLengths[from.shard]!, targetLengths[into.shard]!]
    const pair = from.shard * targetLengths.length + into.shard
    let overlap = overlaps.get(pair)
    if (overlap === undefined) {
      overlap = { source: from.shard, target: into.shard, runs: [], cells: 0, cellsBefore: 0 }
      overlaps.set(pair, overlap)
      bySource[from.shard]!.push(overlap)
      byTarget[into.shard]!.push(overlap)
    }
    const last = overlap.runs.at(-1)
    const isNext =
      last !== undefined &&
      last.sourceStart + last.length === sourceStart &&
      last.targetStart + last.length === targetStart
    if (isNext) last.length += stop - start
    else {
      // Runs begin in the order in which they lie in both shards, so elsewhere than on the grid their number is their cell.
      overlap.runs.push({
        sourceStart,
        targetStart,
        length: stop - start,
        cellStart: 0,
        cells: 1,
        sourceCell: isEven ? sourceStart / cellLength : sourceRuns[from.shard]!++,
        targetCell: isEven ? targetStart / cellLength : targetRuns[into.shard]!++
      })
    }
    sourceLengths[from.shard]! += stop - start
    targetLengths[into.shard]! += stop - start
    if (stop === from.interval[1]) at++
    if (stop === into.interval[1]) to++
    start = stop
  }
  for (const partners of bySource) {
    partners.sort((a, b) => a.target - b.target)
    let before = 0
    for (const overlap of partners) {
      for (const run of overlap.runs) {
        run.cellStart = overlap.cells
        if (isEven) run.cells = run.length / cellLength
        overlap.cells += run.cells
      }
      overlap.cellsBefore = before
      before += overlap.cells
    }
  }
  for (const partners of byTarget) partners.sort((a, b) => a.source - b.source)
  return { isEven, bySource, byTarget, sourceLengths, targetLengths }
}

/** Greatest common divisor. */
const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b))

/** Least common multiple; `undefined` beyond 2^53. */
export const lcm = (a: number, b: number): number | undefined => {
  const product = BigInt(a / gcd(a, b)) * BigInt(b)
  return product > BigInt(Number.MAX_SAFE_INTEGER) ? undefined : Number(product)
}

/** Length of the shortest dimension that the splits cut into equal intervals; `undefined` beyond 2^53. */
export const evenLength = (splits: ReadonlyArray<DimSplit>): number | undefined => {
  let [parts, length]: [number, number | undefined] = [1, 1]
  for (const split of splits) {
    const cut = BigInt(parts) * BigInt(split.parts) * BigInt(split.splitFactor)
    if (length === undefined || cut > BigInt(Number.MAX_SAFE_INTEGER)) return undefined
    length = lcm(length, Number(cut))
    parts *= split.parts
  }
  return length
}
