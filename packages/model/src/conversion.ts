// SPDX-License-Identifier: Apache-2.0
/**
 * What a job makes of a checkpoint's tensors on the way: other element types, or blocks with scales. Pure, and the same on
 * every rank.
 *
 * A quantized tensor is written as two: its data under its own name, and its scales under the name with `_scale` behind it,
 * cut by the same rule.
 */
import { bitsOf, type DType, kindOf } from "@tensorferry/core/base/DType"
import { globMatches } from "@tensorferry/core/layout/ShardingRules"
import { mxfp8Recipe, scaleRules, scaleShapeOf } from "@tensorferry/core/tensor/QuantizedTensor"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Cutting } from "./Cutting.ts"
import type { ModelTensor } from "./layout/ModelLayout.ts"
import { QuantizeChoice } from "./quantized/choice.ts"

/** The element types to which a job can cast floats. */
export const castTypes = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] as const

/** What is stated of the types of some tensors; the first rule that matches a name takes precedence over the rest. */
export const TypeRule = Schema.Struct({
  /** Glob over the whole name, as rules that cut have it. */
  match: Schema.NonEmptyString,
  /** The type that they become, whatever the family needs; or "keep" for the form that they have. */
  dtype: Schema.Literals([...castTypes, "keep"])
})
export type TypeRule = typeof TypeRule.Type

/** What a job makes of a checkpoint's tensors on the way: element types, and quantized forms. */
export const Conversion = Schema.Struct({
  /** Floats that are not quantized become this. */
  dtype: Schema.NullOr(Schema.Literals(castTypes)),
  transform: Schema.NullOr(
    Schema.Struct({ rule: Schema.Literals(scaleRules), side: Schema.Literals(["sender", "receiver"]) })
  ),
  /** The form in which projections are stored, quantized as they are read. */
  quantize: Schema.optionalKey(QuantizeChoice),
  /** Exceptions by name. */
  types: Schema.optionalKey(Schema.Array(TypeRule))
})
export type Conversion = typeof Conversion.Type

const sides = ["sender", "receiver"] as const

/** `mxfp8[:rule][:sender|receiver]`, or what is wrong with it. */
export const parseTransform = (text: string): Result.Result<NonNullable<Conversion["transform"]>, string> => {
  const [name, ...rest] = text.split(":")
  if (name !== "mxfp8") return Result.fail(`There is no transform "${name}".`)
  const unknown = rest.find((part) => ![...scaleRules, ...sides].some((known) => known === part))
  if (unknown !== undefined) return Result.fail(`mxfp8 knows no "${unknown}".`)
  const [rules, places] = [scaleRules, sides].map((all: ReadonlyArray<string>) =>
    rest.filter((part) => all.includes(part))
  )
  if (rules!.length > 1 || places!.length > 1) return Result.fail(`"${text}" says the same thing twice.`)
  return Result.succeed({
    rule: (rules![0] ?? "rceil") as (typeof scaleRules)[number],
    side: (places![0] ?? "receiver") as (typeof sides)[number]
  })
}

/** The name under which the scales of a quantized tensor are stored. */
export const scaleNameOf = (name: string): string => `${name}_scale`

const quantizable: ReadonlySet<DType> = new Set<DType>(["float32", "bfloat16", "float16"])

/** What is stated of a tensor by its name. */
export const typeRuleOf = (conversion: Conversion, name: string): TypeRule["dtype"] | undefined =>
  conversion.types?.find(({ match }) => globMatches(match, name))?.dtype

/**
 * Tensors that are read as float32 whatever the weights are: biases that pick experts, where a step of bfloat16 changes the
 * choice, state matrices and time steps of Mamba, and scales.
 */
const wideNames =
  /(^|[._])(e_score_correction_bias|expert_bias|A_log|dt_bias|ssm_D|mixer\.D|mamba\.D|[a-z_]*scale(_inv|_2)?|scales)$/

/** Whether the matrices of a model are narrower than float32: then what is float32 in it is so for a reason. */
export const hasNarrowMatrices = (tensors: ReadonlyArray<ModelTensor>): boolean =>
  tensors.some(({ dtype, shape }) => shape.length >= 2 && kindOf(dtype) === "float" && bitsOf(dtype) < 32)

/** Whether a tensor keeps the type that it has where nothing is stated of it; norms do beside narrow matrices. */
export const keepsType = ({ dtype, name }: Pick<ModelTensor, "dtype" | "name">, isMixed: boolean): boolean =>
  dtype === "float8_e8m0fnu" ||
  ((dtype === "float32" || dtype === "float64") && (wideNames.test(name) || (isMixed && /norm/i.test(name))))

/** Matrices of whole blocks are quantized; vectors, odd widths, other types, and what is stated by name stay. */
export const isQuantized = (conversion: Conversion | undefined, { dtype, name, shape }: ModelTensor): boolean =>
  conversion?.transform != null &&
  quantizable.has(dtype) &&
  shape.length >= 2 &&
  scaleShapeOf(mxfp8Recipe(), shape) !== undefined &&
  typeRuleOf(conversion, name) === undefined

/** Codes, and scales beside them, which are never cast. */
const isCoded = ({ dtype, name }: ModelTensor): boolean =>
  dtype === "float8_e4m3fn" || dtype === "float8_e8m0fnu" || /\.weight_(global_)?scale(_inv|_2)?$/.test(name)

/** The type that travels to, and is kept by, a tensor that is not quantized. */
export const castType = (conversion: Conversion, tensor: ModelTensor, isMixed: boolean): DType => {
  const stated = typeRuleOf(conversion, tensor.name)
  if (conversion.quantize !== undefined && isCoded(tensor)) return tensor.dtype
  if (stated === "keep" || kindOf(tensor.dtype) !== "float") return tensor.dtype
  return stated ?? (conversion.dtype === null || keepsType(tensor, isMixed) ? tensor.dtype : conversion.dtype)
}

/** What the plan is made for: the same tensors, where they end in other types. */
export const plannedTensors = (
  tensors: ReadonlyArray<ModelTensor>,
  conversion: Conversion | undefined
): ReadonlyArray<ModelTensor> => {
  if (conversion === undefined) return tensors
  const isMixed = hasNarrowMatrices(tensors)
  return tensors.map((tensor) =>
    isQuantized(conversion, tensor) ? tensor : { ...tensor, dtype: castType(conversion, tensor, isMixed) }
  )
}

/** What is held and written at the end. */
export const convertedTensors = (
  tensors: ReadonlyArray<ModelTensor>,
  conversion: Conversion | undefined
): ReadonlyArray<ModelTensor> =>
  plannedTensors(tensors, conversion).flatMap((tensor): ReadonlyArray<ModelTensor> => {
    if (!isQuantized(conversion, tensor)) return [tensor]
    const scales: ModelTensor = {
      name: scaleNameOf(tensor.name),
      dtype: "float8_e8m0fnu",
      shape: scaleShapeOf(mxfp8Recipe(), tensor.shape)!
    }
    return [{ ...tensor, dtype: "float8_e4m3fn" }, scales]
  })

/** Scales are cut like their tensors. */
export const convertedRules = (rules: Cutting, conversion: Conversion | undefined): Cutting =>
  conversion?.transform == null
    ? rules
    : { ...rules, rules: [...rules.rules.map((rule) => ({ ...rule, match: scaleNameOf(rule.match) })), ...rules.rules] }
