// SPDX-License-Identifier: Apache-2.0
/**
 * The values of a base with an adapter merged into it, a few rows at a time: nothing needs the whole model, or a whole matrix,
 * at once. Values are float32 throughout; the reader of a base in another type widens it before and narrows it after.
 *
 * Rows are runs along the last dimension: a matrix [out, in] has `out` of width `in`, a stack [experts, out, in] has
 * `experts * out`, and a vector has as many as elements, of width 1.
 *
 * Invariant: a product is summed in float64 and rounded once; then its scale, the sum with the base and a norm's factor each
 * round to float32. So results do not depend on how rows are grouped.
 */
import { elementCount, type Interval, lengthOf, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { Adapter, AdapterChange, LowRank } from "./Adapter.ts"

/** Values of a tensor of the adapter in full, row-major. They are small, and asked for several times. */
export type AdapterValues = (tensor: string) => Float32Array

/** Some rows of a tensor. */
export interface RowRange {
  readonly rows: Interval
  readonly width: number
}

const outputsLast = ({ magnitude, isTransposed }: LowRank): boolean => magnitude !== undefined && isTransposed

/** Whether the changes of a tensor need `columnSquares` of all its rows first: norms run down its columns. */
export const needsColumnSquares = (changes: ReadonlyArray<AdapterChange>): boolean =>
  changes.some((change) => change._tag === "LowRank" && outputsLast(change))

/** One expert's factor along the base's rows: its ranks behind each other, each as long as a row of the base. */
const alongRows = (change: LowRank, expert: number, width: number, values: AdapterValues): Float32Array => {
  const { rank, isTransposed, experts = 1 } = change
  if (!isTransposed) return values(change.a).subarray(expert * rank * width, (expert + 1) * rank * width)
  const b = values(change.b)
  const turned = new Float32Array(rank * width)
  for (let column = 0; column < width; column++)
    for (let one = 0; one < rank; one++)
      turned[one * width + column] = b[column * rank * experts + one * experts + expert]!
  return turned
}

/** Adds the product to rows of the base. */
const addProduct = (
  change: LowRank,
  { rows: [from, to], width }: RowRange,
  into: Float32Array,
  values: AdapterValues
): void => {
  const { rank, isTransposed, shape, experts = 1 } = change
  const perMatrix = shape.at(-2)!
  const scale = Math.fround(change.scale)
  const across = values(isTransposed ? change.a : change.b)
  const sums = new Float64Array(width)
  let along: Float32Array = new Float32Array(0)
  for (let row = from; row < to; row++) {
    const expert = Math.floor(row / perMatrix)
    const within = row % perMatrix
    if (row === from || within === 0) along = alongRows(change, expert, width, values)
    sums.fill(0)
    for (let one = 0; one < rank; one++) {
      // `a` has an expert's ranks below each other, `b` has the experts of a rank beside each other.
      const factor = isTransposed
        ? across[(expert * rank + one) * perMatrix + within]!
        : across[within * rank * experts + one * experts + expert]!
      for (let column = 0; column < width; column++) sums[column]! += factor * along[one * width + column]!
    }
    const start = (row - from) * width
    for (let column = 0; column < width; column++)
      into[start + column] = into[start + column]! + Math.fround(Math.fround(sums[column]!) * scale)
  }
}

/** Gives each output the norm that the adapter states for it. */
const setNorms = (
  change: LowRank,
  { rows: [from, to], width }: RowRange,
  into: Float32Array,
  values: AdapterValues,
  squares: Float64Array | undefined
): void => {
  const magnitudes = values(change.magnitude!)
  const factorOf = (output: number, square: number): number =>
    Math.fround(magnitudes[output]! / Math.fround(Math.sqrt(square)))
  for (let row = from; row < to; row++) {
    const start = (row - from) * width
    let square = 0
    if (squares === undefined) for (let column = 0; column < width; column++) square += into[start + column]! ** 2
    for (let column = 0; column < width; column++) {
      const factor = squares === undefined ? factorOf(row, square) : factorOf(column, squares[column]!)
      into[start + column] = factor * into[start + column]!
    }
  }
}

const apply = (
  change: AdapterChange,
  range: RowRange,
  into: Float32Array,
  values: AdapterValues,
  squares: Float64Array | undefined
): void => {
  const [from, to] = range.rows
  const { width } = range
  switch (change._tag) {
    case "Whole":
      into.set(values(change.tensor).subarray(from * width, to * width))
      break
    case "LowRank":
      addProduct(change, range, into, values)
      if (change.magnitude !== undefined)
        setNorms(change, range, into, values, outputsLast(change) ? squares : undefined)
      break
    case "Added": {
      const added = values(change.tensor).subarray(from * width, to * width)
      const scale = Math.fround(change.scale)
      for (const [at, value] of added.entries()) into[at] = into[at]! + Math.fround(value * scale)
      break
    }
    case "Rows": {
      const trained = values(change.tensor)
      for (const [at, row] of change.rows.entries())
        if (row >= from && row < to) into.set(trained.subarray(at * width, (at + 1) * width), (row - from) * width)
      break
    }
  }
}

/** Adds the squares of some rows, with their product, to sums over all rows: one sum for each column. */
export const columnSquares = (
  changes: ReadonlyArray<AdapterChange>,
  range: RowRange,
  base: Float32Array,
  values: AdapterValues,
  sums: Float64Array
): void => {
  const rows = base.slice()
  for (const change of changes) if (change._tag === "LowRank") addProduct(change, range, rows, values)
  for (const [at, value] of rows.entries()) sums[at % range.width]! += value ** 2
}

/**
 * Rows of a tensor with its changes. `base` has the same rows of the base, and stays as it is; of a tensor that the base does
 * not have, anything of that length. `squares` are the `columnSquares` of all rows, where they are needed.
 */
export const mergeRows = (
  changes: ReadonlyArray<AdapterChange>,
  range: RowRange,
  base: Float32Array,
  values: AdapterValues,
  squares?: Float64Array
): Result.Result<Float32Array, MappingError> => {
  const [first] = changes
  if (first !== undefined && base.length !== lengthOf(range.rows) * range.width)
    return mappingError(
      "shape_mismatch",
      first.target,
      undefined,
      `${base.length} values are no ${lengthOf(range.rows)} rows of ${range.width}.`,
      "Read as many values of the base as the range has."
    )
  if (squares === undefined && needsColumnSquares(changes))
    return mappingError(
      "unsupported",
      first!.target,
      undefined,
      "Its norms run over all rows, and their squares are not given.",
      "Sum the squares of all rows first."
    )
  const merged = base.slice()
  for (const change of changes) apply(change, range, merged, values, squares)
  return Result.succeed(merged)
}

/** A whole tensor with its changes. */
export const mergeTensor = (
  changes: ReadonlyArray<AdapterChange>,
  shape: Shape,
  base: Float32Array,
  values: AdapterValues
): Result.Result<Float32Array, MappingError> => {
  const width = shape.length < 2 ? 1 : shape.at(-1)!
  const range: RowRange = { rows: [0, width === 0 ? 0 : elementCount(shape) / width], width }
  if (!needsColumnSquares(changes)) return mergeRows(changes, range, base, values)
  const sums = new Float64Array(width)
  columnSquares(changes, range, base, values, sums)
  return mergeRows(changes, range, base, values, sums)
}

const firstDifference = (one: Float32Array, other: (at: number) => number | undefined): number =>
  one.findIndex((value, at) => !Object.is(value, other(at)))

/** Holds what must be equal against each other: copies against the base, and the two sides of tied changes. */
export const checkCopies = (
  { copies, tied }: Adapter,
  values: AdapterValues,
  base: (tensor: string) => Float32Array
): Result.Result<void, MappingError> => {
  for (const { tensor, of } of copies) {
    const original = base(of)
    const at = firstDifference(values(tensor), (place) => original[place])
    if (at < 0) continue
    const detail = `It is no copy of the base's ${of}: element ${at} differs.`
    return mappingError("unexpected_source", tensor, undefined, detail, "Check that the adapter is for this model.")
  }
  for (const { tensor, transposed, rows } of tied) {
    const [one, other] = [values(tensor), values(transposed)]
    const columns = one.length / rows
    const at = firstDifference(one, (place) => other[(place % columns) * rows + Math.floor(place / columns)])
    if (at < 0) continue
    const detail = `It is not ${transposed} transposed, and both change one storage.`
    return mappingError("conflicting_alias", tensor, undefined, detail, "Let the two be untied when it is merged.")
  }
  return Result.succeed(undefined)
}
