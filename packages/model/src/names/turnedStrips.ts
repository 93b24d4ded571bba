// SPDX-License-Identifier: Apache-2.0
/**
 * Strips turned round: what a tensor that is held is made of, as what the tensor that it is made of has there. Functions of
 * values stay as they are.
 */
import { elementCount, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import type { Loop, Strip } from "./Strips.ts"

/** The dimension that equal steps in a flattened tensor go along, and how far; undefined where they leave it. */
const directionOf = (
  { count, source }: Loop,
  corner: ReadonlyArray<number>,
  shape: Shape,
  strides: ReadonlyArray<number>
): { readonly dim: number; readonly step: number } | undefined => {
  for (const [dim, stride] of strides.entries()) {
    const step = source / stride
    if (Number.isInteger(step) && corner[dim]! + step * (count - 1) < shape[dim]!) return { dim, step }
  }
  return undefined
}

const cornerOf = (offset: number, strides: ReadonlyArray<number>): ReadonlyArray<number> => {
  let rest = offset
  return strides.map((stride) => {
    const place = Math.floor(rest / stride)
    rest -= place * stride
    return place
  })
}

/** A strip whose source is walked forwards, and no element of it twice. */
const forwards = (strip: Strip): Strip => {
  let { offset } = strip
  const at = [...strip.at]
  const loops = strip.loops.flatMap((loop): ReadonlyArray<Loop> => {
    if (loop.source === 0) return []
    if (loop.source > 0) return [loop]
    offset += (loop.count - 1) * loop.source
    at[loop.dim]! += (loop.count - 1) * loop.step
    return [{ ...loop, step: -loop.step, source: -loop.source }]
  })
  return { ...strip, offset, at, loops }
}

/** One iteration of a loop. */
const iteration = (strip: Strip, loop: Loop, number: number): Strip => ({
  ...strip,
  offset: strip.offset + number * loop.source,
  at: strip.at.map((place, dim) => (dim === loop.dim ? place + number * loop.step : place)),
  loops: strip.loops.filter((other) => other !== loop)
})

/** A tensor by whose name turned strips call it. */
interface Named {
  readonly name: string
  readonly shape: Shape
}

const turned = (held: Named, strip: Strip, source: Shape): ReadonlyArray<Strip> | undefined => {
  const own = rowMajorStrides(held.shape)
  const strides = rowMajorStrides(source)
  const corner = cornerOf(strip.offset, strides)
  if (strip.offset < 0 || strip.offset >= elementCount(source)) return undefined
  const last = [...corner]
  const loops: Array<Loop> = []
  for (const loop of strip.loops) {
    const direction = directionOf(loop, corner, source, strides)
    if (direction === undefined) {
      const found = Array.from({ length: loop.count }, (_, at) => turned(held, iteration(strip, loop, at), source))
      return found.some((strips) => strips === undefined) ? undefined : found.flatMap((strips) => strips!)
    }
    last[direction.dim]! += direction.step * (loop.count - 1)
    loops.push({ ...direction, count: loop.count, source: loop.step * own[loop.dim]! })
  }
  if (last.some((place, dim) => place >= source[dim]!)) return undefined
  const offset = strip.at.reduce((sum, place, dim) => sum + place * own[dim]!, 0)
  const back: Strip = { source: held.name, offset, at: corner, loops }
  return [strip.scalar === undefined ? back : { ...back, scalar: strip.scalar }]
}

/**
 * A strip of a held tensor as strips of the tensor of a shape that it is made of, whose source is the held one. Several where
 * a loop runs from row to row; undefined where it leaves that tensor.
 */
export const turnedStrips = (strip: Strip, held: Named, source: Shape): ReadonlyArray<Strip> | undefined =>
  turned(held, forwards(strip), source)
