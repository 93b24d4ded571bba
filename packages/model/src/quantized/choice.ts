// SPDX-License-Identifier: Apache-2.0
/**
 * What a user says of the form in which weights are to be stored, and the recipe and names that follow from it. Plain data,
 * the same on every rank.
 */
import {
  type BlockSize,
  type QuantizationRecipe,
  quantizationRecipe,
  quantizationRules
} from "@tensorferry/core/tensor/QuantizedTensor"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** How the tensors of a quantized weight are named and described, by who reads them. */
export const storedAs = ["fp8", "compressed-tensors", "modelopt", "mxfp4"] as const
/** One of `storedAs`: values of `quant_method`. */
export type StoredAs = (typeof storedAs)[number]

/** The form of quantized weights: a recipe, and who reads what is written. */
export const QuantizeChoice = Schema.Struct({
  form: Schema.Literals(["fp8", "mxfp4", "nvfp4"]),
  rule: Schema.String,
  /** Rows and columns that share a scale, 0 for all. */
  block: Schema.Tuple([Schema.Int, Schema.Int]),
  storedAs: Schema.Literals(storedAs),
  /** The family by which weights are told from what stays; that of config.json by default. */
  preset: Schema.optionalKey(Schema.String)
})
export type QuantizeChoice = typeof QuantizeChoice.Type

/** What is written before the rule, for help and errors. */
export const quantizeForms = ["fp8-block", "fp8-channel", "fp8-tensor", "nvfp4", "mxfp4"] as const

interface FormFacts {
  readonly form: QuantizeChoice["form"]
  readonly block: BlockSize
  readonly rule: string
}

const formOf = (text: string): FormFacts | undefined => {
  const sized = /^fp8-block(?:-([1-9]\d{0,4})x([1-9]\d{0,4}))?$/.exec(text)
  if (sized !== null) {
    const block: BlockSize = sized[1] === undefined ? [128, 128] : [Number(sized[1]), Number(sized[2])]
    return { form: "fp8", block, rule: "deepgemm_fp32" }
  }
  switch (text) {
    case "fp8-channel":
      return { form: "fp8", block: [1, 0], rule: "compressed_tensors" }
    case "fp8-tensor":
      return { form: "fp8", block: [0, 0], rule: "compressed_tensors" }
    case "nvfp4":
      return { form: "nvfp4", block: [1, 16], rule: "compressed_tensors" }
    case "mxfp4":
      return { form: "mxfp4", block: [1, 32], rule: "compressed_tensors" }
    default:
      return undefined
  }
}

/** Who reads weights that a rule made. */
const readerOf = ({ block, form }: FormFacts, rule: string): StoredAs => {
  if (form === "nvfp4") return rule === "compressed_tensors" ? "compressed-tensors" : "modelopt"
  if (form === "mxfp4" || rule === "compressed_tensors" || block.includes(0)) return "compressed-tensors"
  return "fp8"
}

/** `fp8-block[-RxC][:rule]`, `fp8-channel[:rule]`, `fp8-tensor[:rule]`, `nvfp4[:rule]`, `mxfp4[:rule]`, or what is wrong. */
export const parseQuantize = (text: string): Result.Result<QuantizeChoice, string> => {
  const [name, rule, ...rest] = text.split(":")
  const facts = formOf(name!)
  if (facts === undefined) return Result.fail(`There is no form "${name}".`)
  if (rest.length > 0) return Result.fail(`"${text}" says more than a form and a rule.`)
  const known: ReadonlyArray<string> = quantizationRules[facts.form]
  const chosen = rule ?? facts.rule
  if (!known.includes(chosen)) return Result.fail(`${facts.form} has no rule "${chosen}", only ${known.join(", ")}.`)
  if (/^te_/.test(chosen) && facts.form === "nvfp4") {
    return Result.fail(`No checkpoint stores what ${chosen} makes: it keeps the largest magnitude instead of a scale.`)
  }
  const { block, form } = facts
  return Result.succeed({ form, rule: chosen, block: [...block], storedAs: readerOf(facts, chosen) })
}

/** The recipe of a choice. */
export const recipeOf = ({ block, form, rule }: QuantizeChoice): QuantizationRecipe =>
  quantizationRecipe(form, rule, "rowMajor", block)
