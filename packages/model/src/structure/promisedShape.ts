// SPDX-License-Identifier: Apache-2.0
/** Lengths that a config states of a module's weight. A length that rests on a number that nothing states is undefined. */
import type { Dim, Length, ModuleSpec } from "./Family.ts"
import type { ModelNumbers } from "./ModelNumbers.ts"
import type { Role } from "./Roles.ts"

type Lengths = ReadonlyArray<number | undefined>

/** The sum; undefined where one of its numbers is not stated. */
export const lengthOf = (length: Length | undefined, numbers: ModelNumbers): number | undefined => {
  if (length === undefined) return undefined
  let sum = 0
  for (const factors of length) {
    let product = 1
    for (const factor of factors) product *= (typeof factor === "number" ? factor : numbers[factor]) ?? Number.NaN
    sum += product
  }
  return Number.isSafeInteger(sum) && sum > 0 ? sum : undefined
}

const widths: { readonly [structure: string]: keyof ModelNumbers } = {
  mlp: "width",
  experts: "expertWidth",
  "shared experts": "sharedWidth"
}

const rows: { readonly [Name in Role]?: Length[number] } = {
  q: ["heads", "headDim"],
  k: ["kvHeads", "headDim"],
  v: ["kvHeads", "headDim"],
  o: ["heads", "headDim"],
  sink: ["heads"],
  vocabulary: ["vocabulary"],
  z: ["ssmHeads", "ssmHeadDim"],
  x: ["ssmHeads", "ssmHeadDim"],
  B: ["ssmGroups", "ssmState"],
  C: ["ssmGroups", "ssmState"],
  dt: ["ssmHeads"],
  linearQ: ["keyHeads", "keyHeadDim"],
  linearK: ["keyHeads", "keyHeadDim"],
  linearV: ["valueHeads", "valueHeadDim"],
  linearHead: ["valueHeads"],
  channel: ["channels"]
}

const roleLength = (role: Role, { structure }: ModuleSpec): Length[number] | undefined => {
  if (role !== "gate" && role !== "up" && role !== "down") return rows[role]
  const width = widths[structure]
  return width === undefined ? undefined : [width]
}

const dimLength = (dim: Dim, spec: ModuleSpec, numbers: ModelNumbers): number | undefined => {
  if (dim.is === "experts") return numbers.experts
  if (dim.isHidden === true) return numbers.hidden
  if (dim.roles.length === 0) return undefined
  const parts: Array<Length[number]> = []
  for (const role of dim.roles) {
    const part = roleLength(role, spec)
    if (part === undefined) return undefined
    parts.push([...part, dim.each ?? 1])
  }
  return lengthOf(parts, numbers)
}

/** The shape of a module's weight as far as it is stated, in the order of the family's dimensions. */
export const promisedShape = (spec: ModuleSpec, numbers: ModelNumbers): Lengths | undefined =>
  spec.shape?.map((length) => lengthOf(length, numbers)) ?? spec.dims?.map((dim) => dimLength(dim, spec, numbers))

/** Whether a shape is what is stated; stacks of experts may be stored the other way round. */
export const fitsPromise = (shape: ReadonlyArray<number>, wanted: Lengths, isStack: boolean): boolean => {
  const fits = (order: Lengths): boolean =>
    shape.every((length, at) => order[at] === undefined || order[at] === length) &&
    (shape.length === order.length || order.includes(undefined))
  return fits(wanted) || (isStack && wanted.length === 3 && fits([wanted[0], wanted[2], wanted[1]]))
}

/** The lengths of a bias: those of the weight without its input. */
export const biasShape = (spec: ModuleSpec, wanted: Lengths): Lengths =>
  spec.dims === undefined
    ? wanted.slice(0, 1)
    : wanted.filter((_, at) => spec.dims![at]?.is === "out" || spec.dims![at]?.is === "experts")

/** As messages write it. */
export const formatPromise = (wanted: Lengths): string => `[${wanted.map((length) => length ?? "any").join(",")}]`
