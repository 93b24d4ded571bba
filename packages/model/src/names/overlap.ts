// SPDX-License-Identifier: Apache-2.0
/**
 * Which elements strips of one tensor have in common, and which have none. Dimensions are looked at one by one, as places along
 * them; elements are never counted through.
 *
 * Invariant: strips that are made of one are disjoint, and nothing of it is in two of them.
 */
import type { Shape } from "@tensorferry/core/base/Region"
import { alongOf, type Loop, reach, type Strip, stripSize, within } from "./Strips.ts"

/** Places of a strip along one dimension. */
interface Places {
  readonly first: number
  /** Behind the last. */
  readonly end: number
  readonly loops: ReadonlyArray<Loop>
  readonly count: number
}

/** A strip with its places along every dimension. */
export interface Spread {
  readonly strip: Strip
  readonly dims: ReadonlyArray<Places>
  /** Equal for strips of the same elements, with few exceptions. */
  readonly key: string
}

/** Finds the places of a strip. */
export const spread = (strip: Strip): Spread => {
  const dims = strip.at.map((first, dim): Places => {
    const loops = alongOf(strip, dim)
    const count = loops.reduce((product, loop) => product * loop.count, 1)
    return { first, end: first + reach(loops), loops, count }
  })
  const key = dims.map(({ first, loops }) => `${first}${loops.map(({ count, step }) => `x${count}:${step}`).join("")}`)
  return { strip, dims, key: key.join() }
}

const isRun = ({ first, end, count }: Places): boolean => end - first === count

const isAt = ({ first, loops }: Places, place: number): boolean => {
  let rest = place - first
  if (rest < 0) return false
  for (const { count, step } of loops) {
    const at = Math.floor(rest / step)
    if (at >= count) return false
    rest -= at * step
  }
  return rest === 0
}

const placesOf = ({ first, loops }: Places): ReadonlyArray<number> =>
  loops.reduce<ReadonlyArray<number>>(
    (places, { count, step }) => places.flatMap((place) => Array.from({ length: count }, (_, at) => place + at * step)),
    [first]
  )

/** How the places of one strip lie to those of another along a dimension. */
type Relation = "apart" | "inside" | ReadonlyArray<number>

const relation = (own: Places, other: Places): Relation => {
  if (own.end <= other.first || other.end <= own.first) return "apart"
  if (isRun(other) && own.first >= other.first && own.end <= other.end) return "inside"
  const places = placesOf(own)
  const common = places.filter((place) => isAt(other, place)).length
  return common === 0 ? "apart" : common === places.length ? "inside" : places
}

/** A strip in runs of places along a dimension that another has, and that it has not. */
const parted = (
  strip: Strip,
  dim: number,
  places: ReadonlyArray<number>,
  other: Places
): readonly [inside: ReadonlyArray<Strip>, outside: ReadonlyArray<Strip>] => {
  const inside: Array<Strip> = []
  const outside: Array<Strip> = []
  let from = 0
  for (let at = 1; at <= places.length; at++) {
    const isInside = isAt(other, places[from]!)
    if (at < places.length && isAt(other, places[at]!) === isInside) continue
    const runs = within(strip, dim, [places[from]!, places[at - 1]! + 1])
    if (isInside) inside.push(...runs)
    else outside.push(...runs)
    from = at
  }
  return [inside, outside]
}

/** What of a strip is not in another. */
export const without = (own: Spread, other: Spread): ReadonlyArray<Spread> => {
  const { dims } = own
  for (const [dim, places] of dims.entries()) {
    const theirs = other.dims[dim]!
    if (places.end <= theirs.first || theirs.end <= places.first) return [own]
  }
  const relations = dims.map((places, dim) => relation(places, other.dims[dim]!))
  if (relations.includes("apart")) return [own]
  const kept: Array<Strip> = []
  let common: ReadonlyArray<Strip> = [own.strip]
  for (const [dim, places] of relations.entries()) {
    if (typeof places === "string") continue
    const parts = common.map((strip) => parted(strip, dim, places, other.dims[dim]!))
    kept.push(...parts.flatMap(([, outside]) => outside))
    common = parts.flatMap(([inside]) => inside)
  }
  return kept.map(spread)
}

/** Whether two lists of strips of one tensor have an element in common. */
export const haveCommon = (a: ReadonlyArray<Strip>, b: ReadonlyArray<Strip>): boolean => {
  const others = b.map(spread)
  return a.some((strip) => {
    const own = spread(strip)
    return others.some((other) => without(own, other)[0] !== own)
  })
}

/** The first element, row-major, that disjoint strips of a tensor leave out, and how many there are; undefined where none is. */
export const firstHole = (
  shape: Shape,
  strips: ReadonlyArray<Strip>
): { readonly first: number; readonly count: number } | undefined => {
  const count = shape.reduce((product, length) => product * length, 1) - sizeOf(strips)
  if (count === 0) return undefined
  let own = strips
  let rest = shape.reduce((product, length) => product * length, 1)
  let first = 0
  for (const [dim, length] of shape.entries()) {
    rest /= length
    const filled = new Float64Array(length)
    for (const strip of own) {
      const { dims } = spread(strip)
      const share = stripSize(strip) / dims[dim]!.count
      for (const place of placesOf(dims[dim]!)) filled[place]! += share
    }
    const at = filled.findIndex((size) => size < rest)
    first += at * rest
    own = own.flatMap((strip) => within(strip, dim, [at, at + 1]))
  }
  return { first, count }
}

const sizeOf = (strips: ReadonlyArray<Strip>): number => strips.reduce((sum, strip) => sum + stripSize(strip), 0)
