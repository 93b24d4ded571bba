// SPDX-License-Identifier: Apache-2.0
/**
 * An adapter beside a base that was mapped: a row operation of the base acts on the rows of `b`, a column operation on the
 * columns of `a`, so neither has to be merged to be fused, reordered or cut. A fused parameter has one product for each of its
 * parts: for a cut q, k and v three, each with the rank's own rows.
 *
 * Invariant: where products of a parameter are added up, there is what the same mapping makes of the products of the base's
 * tensors.
 */
import type { Interval, Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import { type Assembly, concat, expand, type Loop, type Strip, zeros } from "../Strips.ts"
import type { Adapter, LowRank } from "./Adapter.ts"

/** One product of a parameter: `scale * left @ right` is added to the matrix at `lead`. */
export interface FusedProduct {
  readonly change: LowRank
  /** The place in all dimensions of the parameter but the last two; empty for a matrix. */
  readonly lead: ReadonlyArray<number>
  /** [rows, rank], of tensors of the adapter; zeros in rows of other parts. Of `b`, or of `a` where the base is turned. */
  readonly left: Assembly
  /** [rank, columns]; zeros in columns of other parts. */
  readonly right: Assembly
  /** Rows and columns that the product changes. */
  readonly rows: ReadonlyArray<Interval>
  readonly columns: ReadonlyArray<Interval>
}

/** What an adapter does to a parameter that was mapped. */
export interface FusedAdapter {
  readonly products: ReadonlyArray<FusedProduct>
  /** Strips of the parameter that come from the adapter and not from the base. */
  readonly replaced: ReadonlyArray<Strip>
  /** Strips that are added to it. */
  readonly added: ReadonlyArray<{ readonly strip: Strip; readonly scale: number }>
}

/** Products of one matrix as one: the ranks of the parts behind each other. */
export interface JoinedProduct {
  readonly left: Assembly
  readonly right: Assembly
  /** The scale of each rank. */
  readonly scales: ReadonlyArray<number>
}

/** One side of a product: where its elements lie in a tensor of the adapter. */
interface Factor {
  readonly tensor: string
  readonly offset: number
  /** Elements from one output, or input, to the next, and from one rank to the next. */
  readonly along: number
  readonly perRank: number
}

const factorsOf = (change: LowRank, expert: number): { readonly rows: Factor; readonly columns: Factor } => {
  const { a, b, rank, shape, isTransposed } = change
  const experts = change.experts ?? 1
  const inputs = shape.at(isTransposed ? -2 : -1)!
  const outputs: Factor = { tensor: b, offset: expert, along: rank * experts, perRank: experts }
  const input: Factor = { tensor: a, offset: expert * rank * inputs, along: 1, perRank: inputs }
  return isTransposed ? { rows: input, columns: outputs } : { rows: outputs, columns: input }
}

type Outcome<A> = Result.Result<A, MappingError>

const refuse = (name: string, detail: string) =>
  mappingError("unsupported", name, undefined, detail, "Merge the adapter into the base before it is mapped.")

/** A strip with some of its loops at one of their steps each. */
const unrolled = (strip: Strip, isFixed: (loop: Loop) => boolean): ReadonlyArray<Strip> => {
  const loop = strip.loops.find(isFixed)
  if (loop === undefined) return [strip]
  const loops = strip.loops.filter((one) => one !== loop)
  return Array.from({ length: loop.count }, (_, step) => ({
    ...strip,
    loops,
    offset: strip.offset + step * loop.source,
    at: strip.at.map((place, dim) => (dim === loop.dim ? place + step * loop.step : place))
  })).flatMap((one) => unrolled(one, isFixed))
}

interface Piece {
  readonly change: LowRank
  readonly lead: ReadonlyArray<number>
  readonly left: Strip
  readonly right: Strip
}

/** One side of a piece: outputs or inputs along dimension `dim`, ranks along the other. */
const side = (
  factor: Factor,
  rank: number,
  dim: 0 | 1,
  first: number,
  at: number,
  loops: ReadonlyArray<Loop>
): Strip => ({
  source: factor.tensor,
  offset: factor.offset + first * factor.along,
  at: dim === 0 ? [at, 0] : [0, at],
  loops: [
    ...loops.map((loop) => ({ ...loop, dim, source: loop.source * factor.along })),
    ...(rank === 1 ? [] : [{ dim: 1 - dim, count: rank, step: 1, source: factor.perRank }])
  ]
})

/** Whether loops from a place on stay between 0 and a length. */
const staysIn = (first: number, loops: ReadonlyArray<Loop>, length: number): boolean => {
  const ends = loops.map(({ count, source }) => (count - 1) * source)
  const low = ends.reduce((sum, end) => sum + Math.min(0, end), first)
  return low >= 0 && ends.reduce((sum, end) => sum + Math.max(0, end), first) < length
}

/** The product behind one strip of one matrix of an adapted tensor. */
const pieceOf = (name: string, strip: Strip, change: LowRank): Outcome<Piece> => {
  const [rows, columns] = change.shape.slice(-2) as [number, number]
  const matrix = rows * columns
  const expert = Math.floor(strip.offset / matrix)
  const within = strip.offset % matrix
  const [firstRow, firstColumn] = [Math.floor(within / columns), within % columns]
  const dims = strip.at.length
  const [down, across] = [dims - 2, dims - 1].map((dim) => strip.loops.filter((loop) => loop.dim === dim))
  const isRows = ({ source }: Loop): boolean => source % columns === 0
  const isColumns = (loop: Loop): boolean => !isRows(loop)
  const isStraight = down!.every(isRows) && across!.every(isColumns)
  if (!isStraight && !(down!.every(isColumns) && across!.every(isRows)))
    return refuse(name, `Rows and columns of ${change.target} are not apart in it.`)
  const rowLoops = (isStraight ? down! : across!).map((loop) => ({ ...loop, source: loop.source / columns }))
  const columnLoops = isStraight ? across! : down!
  if (!staysIn(firstRow, rowLoops, rows) || !staysIn(firstColumn, columnLoops, columns))
    return refuse(name, `Matrices of ${change.target} are not apart in it.`)
  const factors = factorsOf(change, expert)
  const { rank } = change
  const [atRow, atColumn] = [strip.at[dims - 2]!, strip.at[dims - 1]!]
  return Result.succeed({
    change,
    lead: strip.at.slice(0, -2),
    left: isStraight
      ? side(factors.rows, rank, 0, firstRow, atRow, rowLoops)
      : side(factors.columns, rank, 0, firstColumn, atRow, columnLoops),
    right: isStraight
      ? side(factors.columns, rank, 1, firstColumn, atColumn, columnLoops)
      : side(factors.rows, rank, 1, firstRow, atColumn, rowLoops)
  })
}

/** Places along a dimension that strips fill, as runs. */
const runsOf = (strips: ReadonlyArray<Strip>, dim: number): ReadonlyArray<Interval> => {
  const places = strips
    .flatMap((strip) =>
      strip.loops
        .filter((loop) => loop.dim === dim)
        .reduce<ReadonlyArray<number>>(
          (all, { count, step }) => all.flatMap((at) => Array.from({ length: count }, (_, index) => at + index * step)),
          [strip.at[dim]!]
        )
    )
    .sort((a, b) => a - b)
  const runs: Array<[number, number]> = []
  for (const place of places) {
    const run = runs.at(-1)
    if (run !== undefined && place === run[1]) run[1]++
    else runs.push([place, place + 1])
  }
  return runs
}

/** Strips with zeros where they fill nothing along a dimension. */
const covered = (strips: ReadonlyArray<Strip>, shape: Shape, dim: number, runs: ReadonlyArray<Interval>): Assembly => {
  const gaps: Array<Strip> = []
  let from = 0
  for (const [start, stop] of [...runs, [shape[dim]!, shape[dim]!] as const]) {
    const gap = shape.map((length, at) => (at === dim ? start - from : length))
    gaps.push(...zeros(gap).strips.map((strip) => ({ ...strip, at: shape.map((_, at) => (at === dim ? from : 0)) })))
    from = stop
  }
  return { shape, strips: [...strips, ...gaps] }
}

/** Pieces that have one side in common are one product. */
const gathered = (pieces: ReadonlyArray<Piece>, common: "left" | "right"): ReadonlyArray<ReadonlyArray<Piece>> => {
  const groups = new Map<string, Array<Piece>>()
  for (const piece of pieces) {
    const { source, offset, at, loops } = piece[common]
    const key = JSON.stringify([piece.change.target, piece.lead, source, offset, at, loops, piece.change.a])
    groups.set(key, [...(groups.get(key) ?? []), piece])
  }
  return [...groups.values()]
}

const productOf = (pieces: ReadonlyArray<Piece>, shape: Shape, common: "left" | "right"): FusedProduct => {
  const { change, lead } = pieces[0]!
  const all = (which: "left" | "right"): ReadonlyArray<Strip> =>
    which === common ? [pieces[0]![which]] : pieces.map((piece) => piece[which])
  const [left, right] = [all("left"), all("right")]
  const [rows, columns] = [runsOf(left, 0), runsOf(right, 1)]
  return {
    change,
    lead,
    left: covered(left, [shape.at(-2)!, change.rank], 0, rows),
    right: covered(right, [change.rank, shape.at(-1)!], 1, columns),
    rows,
    columns
  }
}

/** What an adapter does to a parameter that a mapping makes of tensors of its base. */
export const fusedAdapter = (
  parameter: Assembly & { readonly name: string },
  { changes }: Pick<Adapter, "changes">
): Outcome<FusedAdapter> =>
  Result.gen(function* () {
    const { name } = parameter
    const { shape, strips } = parameter.shape.length === 1 ? expand(parameter, 0) : parameter
    const pieces: Array<Piece> = []
    const replaced: Array<Strip> = []
    const added: Array<{ readonly strip: Strip; readonly scale: number }> = []
    for (const [at, strip] of strips.entries()) {
      for (const change of (strip.source === undefined ? undefined : changes.get(strip.source)) ?? []) {
        const own = parameter.strips[at]!
        if (change._tag === "Whole") replaced.push({ ...own, source: change.tensor })
        else if (change._tag === "Rows") return yield* refuse(name, `Rows of ${change.target} are trained.`)
        else if (typeof strip.scalar === "string")
          return yield* refuse(name, `Its values are functions of those of ${change.target}, and no sums.`)
        else if (change._tag === "Added") {
          const { scalar: _scalar, ...plain } = own
          added.push({ strip: { ...plain, source: change.tensor }, scale: change.scale })
        } else if (change.magnitude !== undefined) return yield* refuse(name, `${change.target} has magnitudes.`)
        else {
          const matrix = change.shape.at(-1)! * change.shape.at(-2)!
          const isFixed = ({ dim, source }: Loop): boolean =>
            dim < shape.length - 2 || (change.experts !== undefined && source % matrix === 0)
          for (const one of unrolled(strip, isFixed)) pieces.push(yield* pieceOf(name, one, change))
        }
      }
    }
    const groups = gathered(pieces, "right")
    const single = groups.flatMap((group) => (group.length === 1 ? group : []))
    const products = [
      ...groups.filter((group) => group.length > 1).map((group) => productOf(group, shape, "right")),
      ...gathered(single, "left").map((group) => productOf(group, shape, "left"))
    ]
    return { products, replaced, added }
  })

/** One pair for several products of one matrix, whose ranks stand behind each other. */
export const joinProducts = (products: readonly [FusedProduct, ...ReadonlyArray<FusedProduct>]): JoinedProduct => ({
  left: concat(
    products.map(({ left }) => left),
    1
  ),
  right: concat(
    products.map(({ right }) => right),
    0
  ),
  scales: products.flatMap(({ change }) => Array.from({ length: change.rank }, () => change.scale))
})
