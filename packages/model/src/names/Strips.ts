// SPDX-License-Identifier: Apache-2.0
/**
 * What a tensor is made of: strips, each a grid of elements of one tensor of the model, or of zeros. Fusing, splitting,
 * interleaving, transposing and cutting only move strips about; no element is touched and no length is counted through.
 *
 * Invariant: strips of a tensor do not overlap, and together they cover it.
 */
import { elementCount, type Interval, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"

/** Equal steps along one dimension of the tensor, and the steps of the source that they are. */
export interface Loop {
  readonly dim: number
  readonly count: number
  /** Along the dimension. */
  readonly step: number
  /** In elements of the source; may be negative. */
  readonly source: number
}

/** A function of one element, where a value changes on its way. */
export type Scalar = { readonly add: number } | "negExp" | "logNeg"

/** A grid of elements. Loops of one dimension are nested: an inner one never reaches the next step of an outer one. */
export interface Strip {
  /** The tensor of the model; undefined for zeros. */
  readonly source: string | undefined
  /** Element of the source at the corner, row-major. */
  readonly offset: number
  /** The corner. */
  readonly at: ReadonlyArray<number>
  readonly loops: ReadonlyArray<Loop>
  readonly scalar?: Scalar
}

/** A tensor that is made of strips. */
export interface Assembly {
  readonly shape: Shape
  readonly strips: ReadonlyArray<Strip>
}

/** Elements of a strip. */
export const stripSize = ({ loops }: Strip): number => loops.reduce((product, { count }) => product * count, 1)

const fullLoops = (shape: Shape, strides: ReadonlyArray<number> | undefined): ReadonlyArray<Loop> =>
  shape.flatMap((count, dim) => (count === 1 ? [] : [{ dim, count, step: 1, source: strides?.[dim] ?? 0 }]))

/** A box of a tensor of the model, at a place of a larger one. */
export const boxStrip = (
  source: string | undefined,
  whole: Shape,
  global: ReadonlyArray<Interval>,
  at: ReadonlyArray<number>
): Strip => {
  const strides = rowMajorStrides(whole)
  return {
    source,
    offset: source === undefined ? 0 : global.reduce((sum, [from], dim) => sum + from * strides[dim]!, 0),
    at,
    loops: fullLoops(
      global.map(([from, to]) => to - from),
      source === undefined ? undefined : strides
    )
  }
}

/** A whole tensor of the model. */
export const wholeAssembly = (source: string, shape: Shape): Assembly => ({
  shape,
  strips:
    elementCount(shape) === 0
      ? []
      : [
          boxStrip(
            source,
            shape,
            shape.map((length) => [0, length] as const),
            shape.map(() => 0)
          )
        ]
})

/** Zeros of a shape. */
export const zeros = (shape: Shape): Assembly => ({
  shape,
  strips:
    elementCount(shape) === 0
      ? []
      : [{ source: undefined, offset: 0, at: shape.map(() => 0), loops: fullLoops(shape, undefined) }]
})

/** The loops along a dimension, outermost first. */
export const alongOf = (strip: Strip, dim: number): ReadonlyArray<Loop> =>
  strip.loops.filter((loop) => loop.dim === dim).sort((a, b) => b.step - a.step)

/** Places from the first that loops of one dimension are at to behind the last. */
export const reach = (loops: ReadonlyArray<Loop>): number =>
  loops.reduce((sum, { count, step }) => sum + (count - 1) * step, 1)

const replaced = <A>(list: ReadonlyArray<A>, at: number, ...by: ReadonlyArray<A>): ReadonlyArray<A> => [
  ...list.slice(0, at),
  ...by,
  ...list.slice(at + 1)
]

/** The strip from iteration `from` to `to` of a loop. */
const iterations = (strip: Strip, loop: Loop, from: number, to: number): Strip => ({
  ...strip,
  offset: strip.offset + from * loop.source,
  at: replaced(strip.at, loop.dim, strip.at[loop.dim]! + from * loop.step),
  loops: strip.loops.flatMap((one) => (one !== loop ? [one] : to - from === 1 ? [] : [{ ...one, count: to - from }]))
})

/** What of a strip lies between two places of a dimension; its corner stays where it is. */
export const within = (strip: Strip, dim: number, [from, to]: Interval): ReadonlyArray<Strip> => {
  const along = alongOf(strip, dim)
  const first = strip.at[dim]!
  const end = first + reach(along)
  if (end <= from || first >= to) return []
  if (first >= from && end <= to) return [strip]
  const [outer, ...inner] = along
  const { count, step } = outer!
  const width = reach(inner)
  const begin = Math.min(count, Math.max(0, Math.ceil((from - first) / step)))
  const stop = Math.max(begin, Math.min(count, Math.floor((to - width - first) / step) + 1))
  const found: Array<Strip> = []
  // Iterations that an end of the interval goes through.
  if (begin > 0) found.push(...within(iterations(strip, outer!, begin - 1, begin), dim, [from, to]))
  if (stop > begin) found.push(iterations(strip, outer!, begin, stop))
  if (stop < count) found.push(...within(iterations(strip, outer!, stop, stop + 1), dim, [from, to]))
  return found
}

/** Rows `from` to `to` along a dimension. */
export const take = ({ shape, strips }: Assembly, dim: number, [from, to]: Interval): Assembly => ({
  shape: replaced(shape, dim, to - from),
  strips: strips.flatMap((strip) =>
    within(strip, dim, [from, to]).map((one) => ({ ...one, at: replaced(one.at, dim, one.at[dim]! - from) }))
  )
})

/** Parts behind each other along a dimension; their other lengths are equal. */
export const concat = (parts: ReadonlyArray<Assembly>, dim: number): Assembly => {
  let start = 0
  const strips = parts.flatMap((part) => {
    const shift = start
    start += part.shape[dim]!
    return part.strips.map((strip) => ({ ...strip, at: replaced(strip.at, dim, strip.at[dim]! + shift) }))
  })
  return { shape: replaced(parts[0]!.shape, dim, start), strips }
}

/** Dimension `dim` of the result is dimension `axes[dim]` of what is given. */
export const transpose = ({ shape, strips }: Assembly, axes: ReadonlyArray<number>): Assembly => ({
  shape: axes.map((axis) => shape[axis]!),
  strips: strips.map((strip) => ({
    ...strip,
    at: axes.map((axis) => strip.at[axis]!),
    loops: strip.loops.map((loop) => ({ ...loop, dim: axes.indexOf(loop.dim) }))
  }))
})

/** A dimension of length 1 before `dim`. */
export const expand = ({ shape, strips }: Assembly, dim: number): Assembly => ({
  shape: [...shape.slice(0, dim), 1, ...shape.slice(dim)],
  strips: strips.map((strip) => ({
    ...strip,
    at: [...strip.at.slice(0, dim), 0, ...strip.at.slice(dim)],
    loops: strip.loops.map((loop) => (loop.dim < dim ? loop : { ...loop, dim: loop.dim + 1 }))
  }))
})

/** Without dimension `dim`, whose length is 1. */
export const squeeze = ({ shape, strips }: Assembly, dim: number): Assembly => ({
  shape: replaced(shape, dim),
  strips: strips.map((strip) => ({
    ...strip,
    at: replaced(strip.at, dim),
    loops: strip.loops.map((loop) => (loop.dim < dim ? loop : { ...loop, dim: loop.dim - 1 }))
  }))
})

/** Dimensions `dim` and `dim + 1` as one, the second running faster. */
export const merge = ({ shape, strips }: Assembly, dim: number): Assembly => {
  const inner = shape[dim + 1]!
  return {
    shape: [...shape.slice(0, dim), shape[dim]! * inner, ...shape.slice(dim + 2)],
    strips: strips.map((strip) => ({
      ...strip,
      at: [...strip.at.slice(0, dim), strip.at[dim]! * inner + strip.at[dim + 1]!, ...strip.at.slice(dim + 2)],
      loops: strip.loops.map((loop) =>
        loop.dim < dim ? loop : loop.dim === dim ? { ...loop, step: loop.step * inner } : { ...loop, dim: loop.dim - 1 }
      )
    }))
  }
}

/** A strip whose loops along `dim` are either inside blocks of `inner` or from block to block, in as many as it takes. */
const alongBlocks = (strip: Strip, dim: number, inner: number): ReadonlyArray<Strip> => {
  const first = strip.at[dim]!
  const along = alongOf(strip, dim)
  const small = along.filter(({ step }) => step < inner)
  if (along.every(({ step }) => step < inner || step % inner === 0) && (first % inner) + reach(small) <= inner)
    return [strip]
  const crossing = along.find(({ step }) => step < inner)
  // Every block in full, from its own first element on: the loop counts blocks, then what is in one.
  if (crossing !== undefined && small[0] === crossing && inner % crossing.step === 0) {
    const perBlock = inner / crossing.step
    const within = reach(small.slice(1))
    const isRegular = crossing.count > perBlock && crossing.count % perBlock === 0
    if (isRegular && first % inner < crossing.step && (first % inner) + within <= crossing.step) {
      const outer = { ...crossing, count: crossing.count / perBlock, step: inner, source: crossing.source * perBlock }
      const loops = strip.loops.flatMap((loop) =>
        loop !== crossing ? [loop] : [outer, { ...crossing, count: perBlock }].filter(({ count }) => count > 1)
      )
      return alongBlocks({ ...strip, loops }, dim, inner)
    }
  }
  const end = first + reach(along)
  const head = Math.ceil(first / inner) * inner
  const tail = Math.floor(end / inner) * inner
  const cuts = new Set([first, head, tail, end].filter((place) => place >= first && place <= end))
  const ordered = [...cuts].sort((a, b) => a - b)
  // Where that does not make it regular, block by block.
  const places =
    ordered.length > 2
      ? ordered
      : Array.from({ length: Math.ceil((end - head) / inner) + 1 }, (_, at) => Math.min(end, head + at * inner))
  return places.slice(1).flatMap((to, at) => {
    const parts = within(strip, dim, [places[at]!, to])
    return parts.flatMap((part) => alongBlocks(part, dim, inner))
  })
}

/** Dimension `dim` as two, the second of length `inner`. */
export const split = ({ shape, strips }: Assembly, dim: number, inner: number): Assembly => ({
  shape: replaced(shape, dim, shape[dim]! / inner, inner),
  strips: strips.flatMap((strip) =>
    alongBlocks(strip, dim, inner).map((one) => ({
      ...one,
      at: replaced(one.at, dim, Math.floor(one.at[dim]! / inner), one.at[dim]! % inner),
      loops: one.loops.map((loop) =>
        loop.dim > dim
          ? { ...loop, dim: loop.dim + 1 }
          : loop.dim < dim
            ? loop
            : loop.step < inner
              ? { ...loop, dim: dim + 1 }
              : { ...loop, step: loop.step / inner }
      )
    }))
  )
})

/** Group by group the share of each part, along the first dimension. */
export const interleave = (parts: ReadonlyArray<Assembly>, groups: number): Assembly =>
  merge(
    concat(
      parts.map((part) => split(part, 0, part.shape[0]! / groups)),
      1
    ),
    0
  )

/** Zeros behind a dimension until it has a length. */
export const pad = (part: Assembly, dim: number, length: number): Assembly =>
  length === part.shape[dim]! ? part : concat([part, zeros(replaced(part.shape, dim, length - part.shape[dim]!))], dim)

const addOf = (scalar: Scalar | undefined): number | undefined =>
  typeof scalar === "object" ? scalar.add : scalar === undefined ? 0 : undefined

/** Two functions after each other; undefined where there is no name for that. */
export const scalarAfter = (first: Scalar | undefined, then: Scalar | undefined): Scalar | undefined | null => {
  if (first === undefined) return then
  if (then === undefined) return first
  const [a, b] = [addOf(first), addOf(then)]
  if (a !== undefined && b !== undefined) return a + b === 0 ? undefined : { add: a + b }
  if ((first === "negExp" && then === "logNeg") || (first === "logNeg" && then === "negExp")) return undefined
  return null
}

/** The function that leads back. */
export const inverseScalar = (scalar: Scalar | undefined): Scalar | undefined =>
  scalar === "negExp"
    ? "logNeg"
    : scalar === "logNeg"
      ? "negExp"
      : scalar === undefined
        ? undefined
        : { add: -scalar.add }

/** Each value through a function; zeros of padding stay. */
export const through = ({ shape, strips }: Assembly, scalar: Scalar): Assembly => ({
  shape,
  strips: strips.map((strip) => {
    const joined = strip.source === undefined ? undefined : scalarAfter(strip.scalar, scalar)
    const { scalar: _before, ...plain } = strip
    return joined === undefined || joined === null ? plain : { ...plain, scalar: joined }
  })
})

/** A strip as places of both flattened tensors, outermost loop first: where neighbours are neighbours on both sides they are one. */
export interface LinearStrip {
  readonly source: string | undefined
  readonly at: number
  readonly from: number
  readonly loops: ReadonlyArray<readonly [count: number, step: number, source: number]>
  readonly scalar?: Scalar
}

/** A strip of a tensor of a shape, flattened. */
export const linearStrip = (strip: Strip, shape: Shape): LinearStrip => {
  const strides = rowMajorStrides(shape)
  const loops = strip.loops
    .map(({ dim, count, step, source }) => [count, step * strides[dim]!, source] as [number, number, number])
    .sort((a, b) => b[1] - a[1])
  for (let at = loops.length - 1; at > 0; at--) {
    const [outer, inner] = [loops[at - 1]!, loops[at]!]
    if (outer[1] !== inner[0] * inner[1] || outer[2] !== inner[0] * inner[2]) continue
    loops.splice(at - 1, 2, [outer[0] * inner[0], inner[1], inner[2]])
  }
  return {
    source: strip.source,
    at: strip.at.reduce((sum, place, dim) => sum + place * strides[dim]!, 0),
    from: strip.offset,
    loops,
    ...(strip.scalar === undefined ? {} : { scalar: strip.scalar })
  }
}
