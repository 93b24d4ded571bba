// SPDX-License-Identifier: Apache-2.0
/**
 * What a job makes of a checkpoint's tensors on the way: other element types, or blocks with scales. Pure, and the same on
 * every rank.
 *
 * A quantized tensor is written as two: its data under its own name, and its scales under the name with `_scale` behind it,
 * cut by the same rule.
 */
import { type DType, kindOf } from "@tensorferry/core/base/DType"
import type { ModelTensor } from "@tensorferry/core/layout/ModelLayout"
import { scaleRules, scaleShapeOf } from "@tensorferry/core/tensor/QuantizedTensor"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Cutting } from "./Cutting.ts"

export const Conversion = Schema.Struct({
  /** Floats that are not quantized become this. */
  dtype: Schema.NullOr(Schema.Literals(["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])),
  transform: Schema.NullOr(
    Schema.Struct({ rule: Schema.Literals(scaleRules), side: Schema.Literals(["sender", "receiver"]) })
  )
})
export type Conversion = typeof Conversion.Type

/** The element types to which a job can cast floats. */
export const castTypes = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] as const

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

/** Matrices of whole blocks are quantized; vectors, odd widths and other types stay. */
export const isQuantized = (conversion: Conversion | undefined, { dtype, shape }: ModelTensor): boolean =>
  conversion?.transform != null && quantizable.has(dtype) && shape.length >= 2 && scaleShapeOf(shape) !== undefined

/** The type that travels to, and is kept by, a tensor that is not quantized. */
const castType = ({ dtype }: Conversion, tensor: ModelTensor): DType =>
  dtype !== null && kindOf(tensor.dtype) === "float" && tensor.dtype !== "float8_e8m0fnu" ? dtype : tensor.dtype

/** What the plan is made for: the same tensors, where they end in other types. */
export const plannedTensors = (
  tensors: ReadonlyArray<ModelTensor>,
  conversion: Conversion | undefined
): ReadonlyArray<ModelTensor> =>
  conversion === undefined
    ? tensors
    : tensors.map((tensor) =>
        isQuantized(conversion, tensor) ? tensor : { ...tensor, dtype: castType(conversion, tensor) }
      )

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
      shape: scaleShapeOf(tensor.shape)!
    }
    return [{ ...tensor, dtype: "float8_e4m3fn" }, scales]
  })

/** Scales are cut like their tensors. */
export const convertedRules = (rules: Cutting, conversion: Conversion | undefined): Cutting =>
  conversion?.transform == null
    ? rules
    : { ...rules, rules: [...rules.rules.map((rule) => ({ ...rule, match: scaleNameOf(rule.match) })), ...rules.rules] }
