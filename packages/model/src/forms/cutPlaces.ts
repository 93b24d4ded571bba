// SPDX-License-Identifier: Apache-2.0
/** Places of a weight as places of what is stored: a cut of one as a cut of the other, or why there is none. */
import type { Interval } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { DimMap } from "./Form.ts"

/** Undefined where the place lies inside of what belongs together. */
const storedPlace = (place: number, length: number, stored: number, { per, holds }: DimMap): number | undefined =>
  place === length ? stored : place % per === 0 ? (place / per) * holds : undefined

/** Places below and above that part nothing, of those inside the dimension. */
export const nearestPlaces = (place: number, length: number, per: number): ReadonlyArray<number> => {
  const below = place - (place % per)
  return [below, below + per].filter((one) => one > 0 && one < length)
}

const between = (place: number, { per }: DimMap, length: number): string => {
  const nearest = nearestPlaces(place, length, per)
  return `a cut at ${place} would part ${per} that belong together${nearest.length === 0 ? "" : ` (nearest: ${nearest.join(", ")})`}`
}

/** An interval of a weight's dimension of `length` as one of a stored dimension of `stored` elements. */
export const storedInterval = (
  [from, to]: Interval,
  length: number,
  stored: number,
  map: DimMap
): Result.Result<Interval, string> => {
  const places = [from, to].map((place) => storedPlace(place, length, stored, map))
  const wrong = places.indexOf(undefined)
  return wrong >= 0 ? Result.fail(between([from, to][wrong]!, map, length)) : Result.succeed([places[0]!, places[1]!])
}
