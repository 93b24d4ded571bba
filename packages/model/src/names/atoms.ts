// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors of the checkpoint in the parts by which two sides can be planned: each part lies on every rank of either side as a
 * run along one dimension, with equal steps from element to element. Most tensors are one part. A tensor that one side
 * interleaves and the other cuts inside of a group is several.
 */
import type { Interval, Shape } from "@tensorferry/core/base/Region"
import { type Assembly, type Scalar, type Strip, split } from "./Strips.ts"

/** Most parts of one tensor. */
export const partLimit = 1 << 16

/** A box of a tensor of the checkpoint in refined dimensions, and where a rank has it. */
export interface Piece {
  /** Tensor of the rank. */
  readonly local: string
  /** Element of the rank's tensor at the corner. */
  readonly offset: number
  readonly from: ReadonlyArray<number>
  readonly counts: ReadonlyArray<number>
  /** Elements of the rank's tensor per step along each dimension. */
  readonly strides: ReadonlyArray<number>
  readonly scalar: Scalar | undefined
}

/** What one rank has of a part. Intervals count from the part's corner. */
export interface PartView {
  readonly local: string
  readonly offset: number
  readonly strides: ReadonlyArray<number>
  readonly intervals: ReadonlyArray<Interval>
  readonly scalar: Scalar | undefined
}

/** A part: a box of refined dimensions, what each rank has of it, and along which dimension each side cuts it. */
export interface Part {
  readonly from: ReadonlyArray<number>
  readonly counts: ReadonlyArray<number>
  /** By side, then by rank as the holders are given; undefined where a rank has nothing of it. */
  readonly views: ReadonlyArray<ReadonlyArray<PartView | undefined>>
  readonly cutDims: ReadonlyArray<number | undefined>
}

/** Lengths by which each dimension is refined so that every loop steps by one; undefined where they do not nest. */
const refinements = (shape: Shape, strips: ReadonlyArray<Strip>): ReadonlyArray<ReadonlyArray<number> | undefined> => {
  const steps = shape.map(() => new Set<number>())
  for (const { loops } of strips) for (const { dim, step } of loops) if (step > 1) steps[dim]!.add(step)
  return steps.map((own, dim) => {
    const chain = [...own].sort((a, b) => b - a)
    const isNested = [shape[dim]!, ...chain].every((length, at, all) => at === 0 || all[at - 1]! % length === 0)
    return isNested ? chain : undefined
  })
}

/** A strip without steps along a dimension: one for each. */
const stepless = (strip: Strip, dim: number): ReadonlyArray<Strip> => {
  const loop = strip.loops.find((one) => one.dim === dim && one.step > 1)
  if (loop === undefined) return [strip]
  const loops = strip.loops.filter((one) => one !== loop)
  return Array.from({ length: Math.min(loop.count, partLimit) }, (_, index) => ({
    ...strip,
    loops,
    offset: strip.offset + index * loop.source,
    at: strip.at.map((place, at) => (at === dim ? place + index * loop.step : place))
  })).flatMap((one) => stepless(one, dim))
}

/** The strip in refined dimensions, as boxes. */
const boxesOf = (
  strip: Strip,
  shape: Shape,
  chains: ReadonlyArray<ReadonlyArray<number> | undefined>
): ReadonlyArray<Piece> | undefined => {
  let refined: Assembly = { shape, strips: [strip] }
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    const chain = chains[dim]
    if (chain === undefined)
      refined = { shape: refined.shape, strips: refined.strips.flatMap((one) => stepless(one, dim)) }
    // The outer length first: what is behind a split is split again.
    else for (const [at, inner] of chain.entries()) refined = split(refined, dim + at, inner)
  }
  const pieces: Array<Piece> = []
  for (const { source, offset, at, loops, scalar } of refined.strips) {
    const counts = at.map(() => 1)
    const strides = at.map(() => 0)
    for (const { dim, count, step, source: stride } of loops) {
      if (step !== 1 || counts[dim] !== 1) return undefined
      counts[dim] = count
      strides[dim] = stride
    }
    pieces.push({ local: source!, offset, from: at, counts, strides, scalar })
  }
  return pieces
}

/** Refined dimensions of a tensor and what each rank of each side has of it. */
export interface Refined {
  readonly shape: Shape
  readonly sides: ReadonlyArray<ReadonlyArray<ReadonlyArray<Piece>>>
}

/** Refines a tensor so that what every rank of both sides has of it is boxes; `held` has strips of that tensor. */
export const refine = (shape: Shape, held: ReadonlyArray<ReadonlyArray<ReadonlyArray<Strip>>>): Refined | undefined => {
  const all = held.flat(2)
  const chains = refinements(shape, all)
  const sides: Array<Array<ReadonlyArray<Piece>>> = []
  for (const ranks of held) {
    const own: Array<ReadonlyArray<Piece>> = []
    for (const strips of ranks) {
      const pieces: Array<Piece> = []
      for (const strip of strips) {
        const boxes = boxesOf(strip, shape, chains)
        if (boxes === undefined) return undefined
        pieces.push(...boxes)
      }
      own.push(pieces)
    }
    sides.push(own)
  }
  const lengths = shape.flatMap((length, dim) => {
    const chain = chains[dim] ?? []
    return [length, ...chain].map((own, at) => own / (chain[at] ?? 1))
  })
  return { shape: lengths, sides }
}

const clipped = (piece: Piece, from: ReadonlyArray<number>, counts: ReadonlyArray<number>): Piece | undefined => {
  let offset = piece.offset
  const own: Array<number> = []
  const lengths: Array<number> = []
  for (let dim = 0; dim < from.length; dim++) {
    const start = Math.max(piece.from[dim]!, from[dim]!)
    const end = Math.min(piece.from[dim]! + piece.counts[dim]!, from[dim]! + counts[dim]!)
    if (start >= end) return undefined
    offset += (start - piece.from[dim]!) * piece.strides[dim]!
    own.push(start)
    lengths.push(end - start)
  }
  return { ...piece, offset, from: own, counts: lengths }
}

/** A refined tensor row by row of a dimension: what has nothing of a row is not looked at for it. */
export const rowsOf = ({ shape, sides }: Refined, dim: number): ReadonlyArray<Refined> => {
  const rows = Array.from(
    { length: shape[dim]! },
    (): Array<Array<Array<Piece>>> => sides.map((ranks) => ranks.map(() => []))
  )
  for (const [side, ranks] of sides.entries())
    for (const [rank, pieces] of ranks.entries())
      for (const piece of pieces)
        for (let row = piece.from[dim]!; row < piece.from[dim]! + piece.counts[dim]!; row++)
          rows[row]![side]![rank]!.push(piece)
  return rows.map((own) => ({ shape, sides: own }))
}

interface Fit {
  readonly view: PartView | undefined
  /** Along which dimension it is less than the part. */
  readonly dim: number | undefined
}

/** Pieces of one rank in a part as one view, where they are a run along one dimension. */
const fitOf = (
  pieces: ReadonlyArray<Piece>,
  from: ReadonlyArray<number>,
  counts: ReadonlyArray<number>
): Fit | undefined => {
  const inside = pieces.flatMap((piece) => clipped(piece, from, counts) ?? [])
  const [first, ...others] = inside
  if (first === undefined) return { view: undefined, dim: undefined }
  const partial = counts.flatMap((count, dim) => (inside.some((one) => one.counts[dim] !== count) ? [dim] : []))
  if (partial.length > 1) return undefined
  const [dim] = partial
  if (dim === undefined && others.length > 0) return undefined
  // A single row has no stride of its own: any serves.
  const widest = dim === undefined ? first : (inside.find((one) => one.counts[dim]! > 1) ?? first)
  const strides = [...widest.strides]
  const ordered = [...inside].sort((a, b) => a.offset - b.offset)
  if (dim !== undefined && ordered.length > 1 && widest.counts[dim] === 1)
    strides[dim] = ordered[1]!.offset - ordered[0]!.offset
  const intervals: Array<Interval> = []
  let rows = 0
  for (const one of ordered) {
    const isAlike = one.strides.every((stride, at) => at === dim || one.counts[at] === 1 || stride === strides[at])
    const step = dim === undefined ? 0 : one.counts[dim] === 1 ? strides[dim] : one.strides[dim]
    if (!isAlike || one.local !== first.local || !isSameScalar(one.scalar, first.scalar)) return undefined
    if (dim === undefined) break
    if (step !== strides[dim] || one.offset !== ordered[0]!.offset + rows * strides[dim]!) return undefined
    const start = one.from[dim]! - from[dim]!
    intervals.push([start, start + one.counts[dim]!])
    rows += one.counts[dim]!
  }
  const view = { local: first.local, offset: ordered[0]!.offset, strides, intervals, scalar: first.scalar }
  return { view, dim }
}

const isSameScalar = (a: Scalar | undefined, b: Scalar | undefined): boolean =>
  typeof a === "object" && typeof b === "object" ? a.add === b.add : a === b

/** Cuts a box in parts that fit every rank; undefined where there would be too many. */
export const partsOf = (
  { shape, sides }: Refined,
  begin?: { readonly from: ReadonlyArray<number>; readonly counts: ReadonlyArray<number> }
): ReadonlyArray<Part> | undefined => {
  const found: Array<Part> = []
  const visit = (from: ReadonlyArray<number>, counts: ReadonlyArray<number>): boolean => {
    if (found.length > partLimit) return false
    const part = fit(sides, from, counts)
    if (part !== undefined) {
      found.push(part)
      return true
    }
    const [dim, places] = cutPlaces(sides, from, counts)
    if (dim === undefined) return false
    return places.every((place, at) => {
      const end = places[at + 1] ?? from[dim]! + counts[dim]!
      return visit(
        from.map((own, which) => (which === dim ? place : own)),
        counts.map((own, which) => (which === dim ? end - place : own))
      )
    })
  }
  const isDone = visit(begin?.from ?? shape.map(() => 0), begin?.counts ?? shape)
  return isDone && found.length <= partLimit ? found : undefined
}

/** Whether ranks together have a whole dimension. */
const isCovered = (views: ReadonlyArray<PartView | undefined>, length: number): boolean => {
  let end = 0
  const runs = views.flatMap((view): ReadonlyArray<Interval> => {
    if (view === undefined) return []
    return view.intervals.length > 0 ? view.intervals : [[0, length]]
  })
  for (const [from, to] of [...runs].sort((a, b) => a[0] - b[0])) {
    if (from > end) return false
    end = Math.max(end, to)
  }
  return end === length
}

const fit = (sides: Refined["sides"], from: ReadonlyArray<number>, counts: ReadonlyArray<number>): Part | undefined => {
  const views: Array<Array<PartView | undefined>> = []
  const cutDims: Array<number | undefined> = []
  for (const ranks of sides) {
    let dim: number | undefined
    const own: Array<PartView | undefined> = []
    for (const pieces of ranks) {
      const found = fitOf(pieces, from, counts)
      if (found === undefined) return undefined
      if (found.dim !== undefined) {
        if (dim !== undefined && dim !== found.dim) return undefined
        dim = found.dim
      }
      own.push(found.view)
    }
    // What a side leaves out of a tensor, as rules of parts do, is in no part that it has.
    if (dim !== undefined && !isCovered(own, counts[dim]!)) return undefined
    views.push(own)
    cutDims.push(dim)
  }
  return { from, counts, views, cutDims }
}

/** Where a box that does not fit is cut: at the ends of pieces along the first dimension that has any inside. */
const cutPlaces = (
  sides: Refined["sides"],
  from: ReadonlyArray<number>,
  counts: ReadonlyArray<number>
): readonly [number | undefined, ReadonlyArray<number>] => {
  for (let dim = 0; dim < from.length; dim++) {
    if (counts[dim] === 1) continue
    const places = new Set<number>([from[dim]!])
    for (const ranks of sides) {
      for (const pieces of ranks) {
        for (const piece of pieces) {
          const inside = clipped(piece, from, counts)
          if (inside === undefined) continue
          for (const place of [inside.from[dim]!, inside.from[dim]! + inside.counts[dim]!])
            if (place < from[dim]! + counts[dim]!) places.add(place)
        }
      }
    }
    if (places.size > 1) return [dim, [...places].sort((a, b) => a - b)]
  }
  // No end inside: two tensors of one rank, or steps that differ. Row by row.
  const dim = counts.findIndex((count) => count > 1)
  return dim < 0 ? [undefined, []] : [dim, Array.from({ length: counts[dim]! }, (_, at) => from[dim]! + at)]
}
