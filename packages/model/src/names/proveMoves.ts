// SPDX-License-Identifier: Apache-2.0
/**
 * Proves strided copies between flattened tensors before a byte moves: every element of every destination is written exactly
 * once, and everything that is read is there. Whatever a plan says, it ends: counts and places are looked at first.
 */
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { coverageOf, type Grid, gridsOf } from "./coverage.ts"
import type { MappedTensor } from "./mapModel.ts"
import { linearStrip } from "./Strips.ts"

/** Counts, steps of the destination and steps of the source, outermost first. */
export type MoveLoops = ReadonlyArray<readonly [count: number, destination: number, source: number]>

/** Elements of one source that go to one destination. */
export type Move = readonly [
  destination: number,
  at: number,
  source: number,
  from: number,
  loops: MoveLoops,
  ...rest: ReadonlyArray<unknown>
]

/** Elements of a destination that are zeros, or that are left as they are. */
export type Fill = readonly [
  destination: number,
  at: number,
  loops: ReadonlyArray<readonly [count: number, destination: number]>,
  ...rest: ReadonlyArray<unknown>
]

/** Copies by the numbers of tensors. */
export interface MovePlan {
  /** A source without a shape is not there. */
  readonly sources: ReadonlyArray<readonly [name: string, shape: Shape | undefined]>
  readonly destinations: ReadonlyArray<readonly [name: string, shape: Shape]>
  readonly moves: ReadonlyArray<Move>
  readonly fills: ReadonlyArray<Fill>
  /** Elements that nothing has to write. */
  readonly unwritten?: ReadonlyArray<Fill>
}

/** What is wrong with a plan. */
export type MoveFault =
  | { readonly kind: "missing_source"; readonly source: string; readonly destinations: ReadonlyArray<string> }
  | { readonly kind: "out_of_bounds"; readonly source: string; readonly last: number; readonly size: number }
  | {
      readonly kind: "unwritten" | "written_twice"
      readonly destination: string
      readonly first: number
      readonly count: number
    }
  /** Elements of a destination that it does not have. */
  | { readonly kind: "beyond_destination"; readonly destination: string; readonly last: number; readonly size: number }
  | { readonly kind: "invalid_move"; readonly destination: string; readonly detail: string }
  /** More runs than are looked at. */
  | { readonly kind: "undecided"; readonly destination: string }

/** Most loops of a move. */
const loopLimit = 64

/** The lowest and the highest place; undefined where numbers are none, or beyond what is counted exactly. */
const spanOf = (
  at: number,
  counts: ReadonlyArray<number>,
  steps: ReadonlyArray<number>
): readonly [lowest: number, highest: number] | undefined => {
  if (!Number.isSafeInteger(at) || counts.length > loopLimit) return undefined
  let [lowest, highest, total] = [at, at, 1]
  for (const [which, count] of counts.entries()) {
    const step = steps[which]!
    if (!Number.isSafeInteger(count) || count < 1 || !Number.isSafeInteger(step)) return undefined
    const way = (count - 1) * step
    total *= count
    if (way < 0) lowest += way
    else highest += way
    if (!Number.isSafeInteger(way) || !Number.isSafeInteger(total)) return undefined
    if (!Number.isSafeInteger(lowest) || !Number.isSafeInteger(highest)) return undefined
  }
  return [lowest, highest]
}

/** What is written into one destination. */
interface Written {
  readonly name: string
  readonly size: number
  readonly grids: Array<Grid>
  fault: MoveFault | undefined
}

const write = (to: Written, at: number, loops: ReadonlyArray<readonly number[]>): boolean => {
  const { name, size } = to
  const span = spanOf(
    at,
    loops.map(([count]) => count!),
    loops.map((loop) => loop[1]!)
  )
  if (span === undefined) {
    to.fault ??= {
      kind: "invalid_move",
      destination: name,
      detail: "Counts are whole numbers from 1 on, and places are exact."
    }
    return false
  }
  const [lowest, highest] = span
  if (lowest < 0 || highest >= size) {
    to.fault ??= { kind: "beyond_destination", destination: name, last: lowest < 0 ? lowest : highest, size }
    return false
  }
  to.grids.push(
    ...gridsOf(
      at,
      loops.map(([count, step]) => [count!, step!])
    )
  )
  return true
}

const coverageFaults = ({ name, size, grids, fault }: Written): ReadonlyArray<MoveFault> => {
  if (fault !== undefined) return [fault]
  const found = coverageOf(grids, size)
  if (found === undefined) return [{ kind: "undecided", destination: name }]
  const { unwritten, twice } = found
  return [
    ...(twice === undefined ? [] : [{ kind: "written_twice" as const, destination: name, ...twice }]),
    ...(unwritten === undefined ? [] : [{ kind: "unwritten" as const, destination: name, ...unwritten }])
  ]
}

/** All that is wrong with a plan: first what it reads, then what it writes, destination by destination. */
export const proveMoves = ({
  sources,
  destinations,
  moves,
  fills,
  unwritten = []
}: MovePlan): ReadonlyArray<MoveFault> => {
  const faults: Array<MoveFault> = []
  const written = destinations.map(
    ([name, shape]): Written => ({ name, size: elementCount(shape), grids: [], fault: undefined })
  )
  const sizes = sources.map(([, shape]) => (shape === undefined ? undefined : elementCount(shape)))
  const missing = new Map<string, Array<string>>()
  for (const [destination, at, source, from, loops] of moves) {
    const to = written[destination]
    const name = sources[source]?.[0] ?? `source ${source}`
    if (to === undefined) {
      faults.push({
        kind: "invalid_move",
        destination: `destination ${destination}`,
        detail: "The plan has no such tensor."
      })
      continue
    }
    if (!write(to, at, loops)) continue
    const size = sizes[source]
    if (size === undefined) {
      const known = missing.get(name) ?? []
      missing.set(name, known.includes(to.name) ? known : [...known, to.name])
      continue
    }
    const span = spanOf(
      from,
      loops.map(([count]) => count),
      loops.map((loop) => loop[2])
    )
    if (span === undefined)
      faults.push({ kind: "invalid_move", destination: to.name, detail: `Places of ${name} are not exact.` })
    else if (span[0] < 0 || span[1] >= size)
      faults.push({ kind: "out_of_bounds", source: name, last: span[0] < 0 ? span[0] : span[1], size })
  }
  for (const [destination, at, loops] of [...fills, ...unwritten]) {
    const to = written[destination]
    if (to === undefined)
      faults.push({
        kind: "invalid_move",
        destination: `destination ${destination}`,
        detail: "The plan has no such tensor."
      })
    else write(to, at, loops)
  }
  return [
    ...[...missing].map(([source, own]) => ({ kind: "missing_source" as const, source, destinations: own })),
    ...faults,
    ...written.flatMap(coverageFaults)
  ]
}

/** All that is wrong with what a rank holds; `sources` are the shapes of the checkpoint's tensors. */
export const proveMapped = (
  tensors: ReadonlyArray<Pick<MappedTensor, "name" | "shape" | "strips">>,
  sources: ReadonlyMap<string, Shape>
): ReadonlyArray<MoveFault> => {
  const numbers = new Map<string, number>()
  const named: Array<readonly [string, Shape | undefined]> = []
  const moves: Array<Move> = []
  const fills: Array<Fill> = []
  for (const [destination, { shape, strips }] of tensors.entries()) {
    for (const strip of strips) {
      const { source, at, from, loops } = linearStrip(strip, shape)
      if (source === undefined) {
        fills.push([destination, at, loops.map(([count, step]) => [count, step])])
        continue
      }
      let number = numbers.get(source)
      if (number === undefined) {
        number = named.push([source, sources.get(source)]) - 1
        numbers.set(source, number)
      }
      moves.push([destination, at, number, from, loops])
    }
  }
  return proveMoves({ sources: named, destinations: tensors.map(({ name, shape }) => [name, shape]), moves, fills })
}
