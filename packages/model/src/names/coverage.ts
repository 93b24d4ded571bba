// SPDX-License-Identifier: Apache-2.0
/**
 * Which elements of a flattened tensor strided writes leave out, and which they write twice. Elements are not marked one by
 * one: writes that repeat with one period are looked at for one period, and what is left is a list of runs.
 *
 * Invariant: what is found is exact, or it is said that too many runs would have to be looked at.
 */

/** A grid of writes: counts and steps, outermost first. Steps are positive and descend. */
export interface Grid {
  readonly at: number
  readonly loops: ReadonlyArray<readonly [count: number, step: number]>
}

/** Elements by the first of them and how many they are. */
export interface Found {
  readonly first: number
  readonly count: number
}

export interface Coverage {
  readonly unwritten: Found | undefined
  readonly twice: Found | undefined
}

/** Most runs that are looked at for one tensor, and most grids whose periods are told apart. */
export const runLimit = 2 ** 22
const periodicLimit = 1024

/** Runs and grids that may still be looked at: whatever a plan says, looking at it ends. */
interface Budget {
  left: number
}

const spend = (budget: Budget, units: number): boolean => {
  budget.left -= units
  return budget.left >= 0
}

const nothing: Coverage = { unwritten: undefined, twice: undefined }

const joined = (a: Found | undefined, b: Found | undefined): Found | undefined =>
  a === undefined ? b : b === undefined ? a : { first: Math.min(a.first, b.first), count: a.count + b.count }

const both = (a: Coverage, b: Coverage): Coverage => ({
  unwritten: joined(a.unwritten, b.unwritten),
  twice: joined(a.twice, b.twice)
})

const found = (first: number, count: number): Found | undefined => (count > 0 ? { first, count } : undefined)

const moved = (one: Found | undefined, by: number, times: number): Found | undefined =>
  one === undefined ? undefined : { first: one.first + by, count: one.count * times }

/** Elements from the first to behind the last. */
const reach = (loops: Grid["loops"]): number => loops.reduce((sum, [count, step]) => sum + (count - 1) * step, 1)

const elements = (loops: Grid["loops"]): number => loops.reduce((product, [count]) => product * count, 1)

/**
 * Loops from the longest step to the shortest, neighbours that are one loop as one; a loop that stands still writes the same
 * elements again, which a second grid says as well as a thousand.
 */
export const gridsOf = (
  at: number,
  loops: ReadonlyArray<readonly [count: number, step: number]>
): ReadonlyArray<Grid> => {
  let corner = at
  const own: Array<[number, number]> = []
  let isAgain = false
  for (const [count, step] of loops) {
    if (step === 0) isAgain ||= count > 1
    if (step === 0 || count === 1) continue
    if (step < 0) corner += (count - 1) * step
    own.push([count, Math.abs(step)])
  }
  own.sort((a, b) => b[1] - a[1])
  for (let outer = own.length - 2; outer >= 0; outer--) {
    const [[count, step], inner] = [own[outer]!, own[outer + 1]!]
    if (step !== inner[0] * inner[1]) continue
    own.splice(outer, 2, [count * inner[0], inner[1]])
    outer = Math.min(outer + 1, own.length - 1)
  }
  const grid: Grid = { at: corner, loops: own }
  return isAgain ? [grid, grid] : [grid]
}

/** Whether no element is met twice inside of a grid. */
const isNested = ({ loops }: Grid): boolean =>
  loops.every(([, step], at) => at === loops.length - 1 || step >= reach(loops.slice(at + 1)))

const isRun = ({ loops }: Grid): boolean => loops.length === 0 || (loops.length === 1 && loops[0]![1] === 1)

/** A single grid that meets nothing twice leaves out what lies between its runs. */
const alone = ({ at, loops }: Grid): Coverage => {
  const inner = loops.at(-1)
  const run = inner?.[1] === 1 ? inner[0] : 1
  return { unwritten: found(at + run, reach(loops) - elements(loops)), twice: undefined }
}

/** Runs of consecutive elements, from sorted starts and ends. */
const sweep = (starts: Float64Array, ends: Float64Array, from: number, to: number): Coverage => {
  starts.sort()
  ends.sort()
  let [unwritten, twice]: [Found | undefined, Found | undefined] = [undefined, undefined]
  let [depth, place, begin, end] = [0, from, 0, 0]
  while (end < ends.length) {
    const isStart = begin < starts.length && starts[begin]! < ends[end]!
    const next = isStart ? starts[begin]! : ends[end]!
    if (next > place) {
      if (depth === 0) unwritten = joined(unwritten, found(place, next - place))
      if (depth > 1) twice = joined(twice, found(place, next - place))
      place = next
    }
    if (isStart) {
      depth++
      begin++
    } else {
      depth--
      end++
    }
  }
  return { unwritten: joined(unwritten, found(place, to - place)), twice }
}

const runsOf = (grids: ReadonlyArray<Grid>): number =>
  grids.reduce((sum, { loops }) => sum + elements(loops) / (loops.at(-1)?.[1] === 1 ? loops.at(-1)![0] : 1), 0)

/** Looks at every run. */
const byRuns = (grids: ReadonlyArray<Grid>, from: number, to: number, budget: Budget): Coverage | undefined => {
  const total = runsOf(grids)
  if (total > runLimit || !spend(budget, total)) return undefined
  const starts = new Float64Array(total)
  const ends = new Float64Array(total)
  let at = 0
  const walk = (place: number, loops: Grid["loops"], depth: number): void => {
    const loop = loops[depth]
    if (loop === undefined || (depth === loops.length - 1 && loop[1] === 1)) {
      starts[at] = place
      ends[at++] = place + (loop?.[0] ?? 1)
      return
    }
    for (let index = 0; index < loop[0]; index++) walk(place + index * loop[1], loops, depth + 1)
  }
  for (const { at: corner, loops } of grids) walk(corner, loops, 0)
  return sweep(starts, ends, from, to)
}

/** A grid in periods: which it is in, and what of a period it writes. */
interface Periodic {
  readonly from: number
  readonly count: number
  readonly grid: Grid
}

/** A grid as what it writes of each period; undefined where it does not keep to them. */
const inPeriods = ({ at, loops }: Grid, base: number, period: number): ReadonlyArray<Periodic> | undefined => {
  const [outer, ...inner] = loops
  const offset = at - base
  const from = Math.floor(offset / period)
  const rest = offset % period
  if (rest + reach(loops) <= period) return [{ from, count: 1, grid: { at: rest, loops } }]
  const [count, step] = outer!
  if (step === period)
    return rest + reach(inner) <= period ? [{ from, count, grid: { at: rest, loops: inner } }] : undefined
  if (period % step !== 0) return undefined
  // What lies before the first whole period, the whole periods, and what lies behind them.
  const each = period / step
  if ((rest % step) + reach(inner) > step) return undefined
  const first = Math.min(count, (each - Math.floor(rest / step)) % each)
  const whole = Math.floor((count - first) / each)
  const last = count - first - whole * each
  const part = (skipped: number, length: number, times: number): ReadonlyArray<Periodic> => {
    if (length === 0 || times === 0) return []
    const start = offset + skipped * step
    const own = length === 1 ? inner : [[length, step] as const, ...inner]
    return [{ from: Math.floor(start / period), count: times, grid: { at: start % period, loops: own } }]
  }
  return [...part(0, first, 1), ...part(first, each, whole), ...part(first + whole * each, last, 1)]
}

const byPeriods = (grids: ReadonlyArray<Grid>, from: number, to: number, budget: Budget): Coverage | undefined => {
  if (grids.length > periodicLimit) return undefined
  const period = Math.max(...grids.map(({ loops }) => loops[0]?.[1] ?? 1))
  if (period === 1 || to - from <= period) return undefined
  const parts: Array<Periodic> = []
  for (const grid of grids) {
    const own = inPeriods(grid, from, period)
    if (own === undefined) return undefined
    parts.push(...own)
  }
  const all = Math.ceil((to - from) / period)
  const places = new Set([0, all - 1, all])
  for (const { from: own, count } of parts) places.add(own).add(own + count)
  const ordered = [...places].sort((a, b) => a - b)
  let total = nothing
  for (const [at, begin] of ordered.slice(0, -1).entries()) {
    const end = ordered[at + 1]!
    const active = parts.filter((part) => part.from <= begin && part.from + part.count >= end)
    const length = begin === all - 1 ? to - from - begin * period : period
    const one = coverageIn(
      active.map(({ grid }) => grid),
      0,
      length,
      budget
    )
    if (one === undefined) return undefined
    const start = from + begin * period
    total = both(total, {
      unwritten: moved(one.unwritten, start, end - begin),
      twice: moved(one.twice, start, end - begin)
    })
  }
  return total
}

/**
 * What grids leave out of the elements from 0 to a size, and write twice; all of them lie inside. Undefined where too many
 * runs would have to be looked at.
 */
export const coverageOf = (grids: ReadonlyArray<Grid>, size: number): Coverage | undefined =>
  coverageIn(grids, 0, size, { left: 2 * runLimit + grids.length })

const coverageIn = (grids: ReadonlyArray<Grid>, from: number, to: number, budget: Budget): Coverage | undefined => {
  if (!spend(budget, grids.length)) return undefined
  const ordered = [...grids].sort((a, b) => a.at - b.at)
  let total = nothing
  let place = from
  for (let at = 0; at < ordered.length; ) {
    const begin = ordered[at]!.at
    const cluster: Array<Grid> = []
    let end = begin
    while (at < ordered.length && (cluster.length === 0 || ordered[at]!.at < end)) {
      const grid = ordered[at++]!
      cluster.push(grid)
      end = Math.max(end, grid.at + reach(grid.loops))
    }
    const [first] = cluster
    const own =
      cluster.length === 1 && isNested(first!)
        ? alone(first!)
        : cluster.every(isRun)
          ? byRuns(cluster, begin, end, budget)
          : ((cluster.every(isNested) ? byPeriods(cluster, begin, end, budget) : undefined) ??
            byRuns(cluster, begin, end, budget))
    if (own === undefined) return undefined
    total = both(both(total, { unwritten: found(place, begin - place), twice: undefined }), own)
    place = end
  }
  return both(total, { unwritten: found(place, to - place), twice: undefined })
}
