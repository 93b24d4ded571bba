// SPDX-License-Identifier: Apache-2.0
/** A recipe turned about at random: dimensions exchanged, split, merged, padded, values shifted. Shapes are followed, so each step fits. */
import type { RandomRecipe } from "./recipe.ts"

/** A whole number from 0 to below a limit; 0 is the simplest choice. */
export type Draw = (limit: number) => number

/** Draws from a list of numbers, in turn. */
export const drawFrom = (numbers: ReadonlyArray<number>): Draw => {
  let next = 0
  return (limit) => numbers[next++ % numbers.length]! % limit
}

interface Turned {
  readonly recipe: RandomRecipe
  readonly shape: ReadonlyArray<number>
}

const replaced = (shape: ReadonlyArray<number>, at: number, ...by: ReadonlyArray<number>): ReadonlyArray<number> => [
  ...shape.slice(0, at),
  ...by,
  ...shape.slice(at + 1)
]

const divisors = (length: number): ReadonlyArray<number> =>
  Array.from({ length }, (_, at) => at + 1).filter((one) => length % one === 0)

/** An order of dimensions, drawn one by one. */
const order = (dims: number, draw: Draw): ReadonlyArray<number> => {
  const left = Array.from({ length: dims }, (_, at) => at)
  return Array.from({ length: dims }, () => left.splice(draw(left.length), 1)[0]!)
}

const steps: ReadonlyArray<(one: Turned, draw: Draw) => Turned | undefined> = [
  ({ recipe, shape }, draw) => {
    const axes = order(shape.length, draw)
    return { recipe: { transpose: recipe, axes }, shape: axes.map((axis) => shape[axis]!) }
  },
  ({ recipe, shape }, draw) => {
    if (shape.length > 3) return undefined
    const dim = draw(shape.length)
    const all = divisors(shape[dim]!)
    const inner = all[draw(all.length)]!
    return { recipe: { split: recipe, dim, inner }, shape: replaced(shape, dim, shape[dim]! / inner, inner) }
  },
  ({ recipe, shape }, draw) => {
    if (shape.length < 2) return undefined
    const dim = draw(shape.length - 1)
    const length = shape[dim]! * shape[dim + 1]!
    return { recipe: { merge: recipe, dim }, shape: [...shape.slice(0, dim), length, ...shape.slice(dim + 2)] }
  },
  ({ recipe, shape }, draw) => {
    if (shape.length > 3) return undefined
    const dim = draw(shape.length + 1)
    return { recipe: { expand: recipe, dim }, shape: [...shape.slice(0, dim), 1, ...shape.slice(dim)] }
  },
  ({ recipe, shape }) => {
    const dim = shape.indexOf(1)
    return dim < 0 || shape.length === 1 ? undefined : { recipe: { squeeze: recipe, dim }, shape: replaced(shape, dim) }
  },
  ({ recipe, shape }, draw) => {
    const dim = draw(shape.length)
    const multipleOf = 2 + draw(4)
    const length = Math.ceil(shape[dim]! / multipleOf) * multipleOf
    if (shape.reduce((product, one) => product * one, 1) > 2000) return undefined
    return { recipe: { pad: recipe, multipleOf, dim }, shape: replaced(shape, dim, length) }
  }
]

/** Up to five steps, and at most one function of the values. */
export const turnedAtRandom = (recipe: RandomRecipe, shape: ReadonlyArray<number>, draw: Draw): Turned => {
  let one: Turned = { recipe, shape }
  for (let left = draw(6); left > 0; left--) one = steps[draw(steps.length)]!(one, draw) ?? one
  const scalar = draw(12)
  if (scalar === 1) return { ...one, recipe: { add: 1 + draw(3), to: one.recipe } }
  if (scalar === 2) return { ...one, recipe: { negExp: one.recipe } }
  return one
}
