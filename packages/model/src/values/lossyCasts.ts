// SPDX-License-Identifier: Apache-2.0
/**
 * The roundings of a plan: every parameter that travels in a type which cannot hold all values of its source. Pure.
 */
import { type DType, kindOf } from "@tensorferry/core/base/DType"
import { elementCount, regionShape } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"

/** A parameter that is sent in a type which cannot hold all its values. */
export interface LossyCast {
  readonly paramName: string
  readonly from: DType
  readonly to: DType
  /** Elements that this rank sends so. */
  readonly elements: number
}

/** Bits of exponent and of mantissa, for floats. */
const precision: Partial<Record<DType, readonly [exponent: number, mantissa: number]>> = {
  float64: [11, 52],
  float32: [8, 23],
  bfloat16: [8, 7],
  float16: [5, 10],
  float8_e5m2: [5, 2],
  float8_e4m3fn: [4, 3],
  float8_e8m0fnu: [8, 0]
}

/** False only where every value of one type is a value of the other. */
export const isLossy = (from: DType, to: DType): boolean => {
  if (from === to || kindOf(from) === "bool") return false
  const [source, target] = [precision[from], precision[to]]
  if (source === undefined || target === undefined || to === "float8_e8m0fnu") return true
  return source[0] > target[0] || source[1] > target[1]
}

/** In the order in which parameters first appear among the sends. */
export const lossyCasts = (plan: ReshardPlan): ReadonlyArray<LossyCast> => {
  const held = new Map(plan.sourceTensors.map(({ name, dtype }) => [name, dtype]))
  const found = new Map<string, LossyCast>()
  for (const { paramName, mySlice, wireDtype } of plan.sendOps) {
    const from = held.get(paramName)
    if (from === undefined || !isLossy(from, wireDtype)) continue
    const elements = (found.get(paramName)?.elements ?? 0) + elementCount(regionShape(mySlice))
    found.set(paramName, { paramName, from, to: wireDtype, elements })
  }
  return [...found.values()]
}
