// SPDX-License-Identifier: Apache-2.0
/**
 * What is packed along one dimension of a weight: runs of equal units, each run on an axis.
 */
import * as Result from "effect/Result"
import type { Dim } from "../structure/Family.ts"
import type { ModelNumbers } from "../structure/ModelNumbers.ts"
import { type Axis, axes, countOf, factsOf, type Role } from "../structure/Roles.ts"

/** A run of units along a dimension. */
export interface Run {
  readonly role: Role
  readonly axis: Axis
  readonly count: number
  /** Elements of one unit. */
  readonly unit: number
}

const sizeOf = (role: Role, numbers: ModelNumbers): number | undefined => {
  const { size } = factsOf(role)
  return size === undefined || size === 1 ? size : numbers[size]
}

const misfit = (roles: ReadonlyArray<Role>, length: number, wanted: string): Result.Result<never, string> =>
  Result.fail(`${roles.join(", ")} have ${length} rows or columns, which are not ${wanted}`)

/** One run: its unit follows from the length. */
const single = (role: Role, length: number, each: number, numbers: ModelNumbers): Result.Result<Run, string> => {
  const { axis } = factsOf(role)
  const count = countOf(axis, numbers)
  // Without a config nothing says how many heads there are: rows are units then.
  if (count === undefined) {
    return length % each === 0
      ? Result.succeed({ role, axis, count: length / each, unit: each })
      : misfit([role], length, `runs of ${each}`)
  }
  const size = sizeOf(role, numbers) ?? 1
  const unit = length / count
  // Queries may have a gate of their own size behind them.
  if (!Number.isInteger(unit) || unit % size !== 0)
    return misfit([role], length, `${count} ${axes[axis].label}${size === 1 ? "" : ` of ${size}`}`)
  return Result.succeed({ role, axis, count, unit })
}

/** The runs of a dimension in order, or what does not fit. */
export const runsOf = (dim: Dim, length: number, numbers: ModelNumbers): Result.Result<ReadonlyArray<Run>, string> => {
  const { roles, each = 1 } = dim
  if (roles.length === 1) return Result.map(single(roles[0]!, length, each, numbers), (run) => [run])
  const stated = roles.map((role) => {
    const { axis } = factsOf(role)
    return { role, axis, count: countOf(axis, numbers), unit: sizeOf(role, numbers) }
  })
  const known = stated.flatMap(
    ({ role, axis, count, unit }): ReadonlyArray<Run> =>
      count === undefined || unit === undefined ? [] : [{ role, axis, count, unit }]
  )
  if (known.length === roles.length) {
    const sum = known.reduce((total, { count, unit }) => total + count * unit, 0)
    if (sum === length) return Result.succeed(known)
    const text = known.map(({ role, count, unit }) => `${role} ${count}x${unit}`).join(", ")
    return misfit(roles, length, `${text}, together ${sum}`)
  }
  // Gate and up, or channels twice: equal runs of a width that the shape states.
  const isEven = stated.every(({ axis }) => axes[axis].rule === "even")
  if (!isEven) return Result.fail(`${roles.join(", ")} are packed in one, and the config does not state their sizes`)
  if (length % roles.length !== 0) return misfit(roles, length, `${roles.length} equal runs`)
  return Result.succeed(stated.map(({ role, axis }) => ({ role, axis, count: length / roles.length, unit: 1 })))
}
