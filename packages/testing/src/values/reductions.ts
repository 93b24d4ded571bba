// SPDX-License-Identifier: Apache-2.0
/**
 * The bits of every reduction: what `TensorEngine.reduce` must give on every device.
 *
 * Operands are taken in the order given. Floats up to 32 bits accumulate in float32, rounded after every step, float64 in
 * float64; the result is rounded once to its type. `avg` divides the sum by the count. `max` and `min` give NaN where an
 * operand is NaN, and the first of equal operands. Integers keep their low bits; their `avg` divides the wrapped sum and
 * truncates. For bool, `sum` and `max` are "or", `product` and `min` are "and", and `avg` does not exist.
 */
import { bitsOf, type DType, kindOf } from "@tensorferry/core/base/DType"
import type { ReduceOp } from "@tensorferry/core/service/TensorEngine"
import type { ElementValue } from "./casts.ts"

/** Gives one element for the operands' elements at one place, of which there is at least one. */
export type Reduction = (operands: ReadonlyArray<ElementValue>) => ElementValue

type Step<A> = (accumulated: A, operand: A) => A

/** `>` and `<` are false for NaN, so a NaN operand is taken by the second test and stays by the first. */
const extremum =
  <A extends ElementValue>(isBetter: (a: A, b: A) => boolean): Step<A> =>
  (accumulated, operand) =>
    isBetter(operand, accumulated) || Number.isNaN(operand) ? operand : accumulated

const stepsBy = <A extends ElementValue>(sum: Step<A>, product: Step<A>): Record<ReduceOp, Step<A>> => ({
  sum,
  avg: sum,
  product,
  max: extremum((a, b) => a > b),
  min: extremum((a, b) => a < b)
})

const floatSteps = stepsBy<number>(
  (a, b) => a + b,
  (a, b) => a * b
)
const integerSteps = stepsBy<bigint>(
  (a, b) => a + b,
  (a, b) => a * b
)

const floatReduction = (dtype: DType, op: ReduceOp): Reduction => {
  const round = dtype === "float64" ? (value: number) => value : Math.fround
  const step = floatSteps[op]
  return (operands) => {
    const total = operands.map(Number).reduce((a, b) => round(step(a, b)))
    return op === "avg" ? round(total / operands.length) : total
  }
}

const integerReduction = (dtype: DType, op: ReduceOp): Reduction => {
  const bits = bitsOf(dtype)
  const wrap = (value: bigint) =>
    kindOf(dtype) === "unsigned" ? BigInt.asUintN(bits, value) : BigInt.asIntN(bits, value)
  const step = integerSteps[op]
  return (operands) => {
    const total = operands.map(BigInt).reduce((a, b) => wrap(step(a, b)))
    return op === "avg" ? total / BigInt(operands.length) : total
  }
}

const boolReduction = (op: ReduceOp): Reduction | undefined => {
  if (op === "avg") return undefined
  return op === "sum" || op === "max"
    ? (operands) => Number(operands.some((operand) => operand !== 0))
    : (operands) => Number(operands.every((operand) => operand !== 0))
}

/** The reduction of one element, given at least one operand; `undefined` where there is none for the type. */
export const reduction = (dtype: DType, op: ReduceOp): Reduction | undefined => {
  switch (kindOf(dtype)) {
    case "opaque":
      return undefined
    case "bool":
      return boolReduction(op)
    case "float":
      return floatReduction(dtype, op)
    default:
      return integerReduction(dtype, op)
  }
}
