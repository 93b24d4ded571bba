// SPDX-License-Identifier: Apache-2.0
/**
 * Which weights of a model are quantized, and the tensors that each becomes: codes, scales and, where there is one, a global
 * scale. Pure, by what the tensors mean.
 *
 * Invariants: projections of attention, MLPs and experts are quantized; embeddings, heads, routers, norms and whatever else
 * engines leave alone stay as they are. Weights that engines join into one share a global scale.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  type QuantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import * as Result from "effect/Result"
import { describeModel } from "../describe/describeModel.ts"
import type { Module } from "../describe/ModelStructure.ts"
import { findFamily } from "../families/families.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import type { ConfigObject } from "../structure/ModelConfig.ts"
import { type QuantizeChoice, recipeOf } from "./choice.ts"

/** A weight that is quantized. */
export interface QuantizedWeight {
  /** As the model stores it. */
  readonly source: ModelTensor
  readonly recipe: QuantizationRecipe
  /** Rows are outputs, columns inputs: the shape that is quantized. The source may have them the other way round. */
  readonly shape: Shape
  readonly isSwapped: boolean
  readonly codes: ModelTensor
  readonly scales: ModelTensor
  readonly global: ModelTensor | undefined
  /** Weights of one name here share what is of the whole weight: a global scale. */
  readonly group: string
}

/** What is quantized, and what modules stay that engines would otherwise take for quantized. */
export interface Selection {
  readonly weights: ReadonlyArray<QuantizedWeight>
  readonly kept: ReadonlyArray<string>
}

const quantizedStructures = new Set(["attention", "latent", "mlp", "experts", "shared experts"])
const sourceTypes = new Set<DType>(["bfloat16", "float16", "float32"])

/** Roles that engines join into one weight, and what joins them. */
const fusions: ReadonlyArray<readonly [RegExp, string]> = [
  [/\.(q_proj|k_proj|v_proj)$/, ".qkv"],
  [/\.(q_a_proj|kv_a_proj_with_mqa)$/, ".qkv_a"],
  [/\.(gate_proj|up_proj)$/, ".gate_up"],
  [/\.(w1|w3)$/, ".w13"]
]

const groupOf = (path: string): string => {
  for (const [pattern, joined] of fusions) if (pattern.test(path)) return path.replace(pattern, joined)
  return path
}

const nameIn = (path: string, suffix: string): string => `${path}.${suffix}`

/** Names of codes, scales and the global scale of a module's weight. */
const namesOf = (path: string, { form, storedAs }: QuantizeChoice): readonly [string, string, string] => {
  if (storedAs === "modelopt")
    return [nameIn(path, "weight"), nameIn(path, "weight_scale"), nameIn(path, "weight_scale_2")]
  if (storedAs === "fp8") return [nameIn(path, "weight"), nameIn(path, "weight_scale_inv"), ""]
  const codes = form === "fp8" ? "weight" : "weight_packed"
  return [nameIn(path, codes), nameIn(path, "weight_scale"), nameIn(path, "weight_global_scale")]
}

/** gpt-oss keeps its experts in blocks of 16 bytes, under names of its own. */
const blocksOf = (source: ModelTensor, recipe: QuantizationRecipe): QuantizedWeight | undefined => {
  const [experts, inputs, outputs] = source.shape
  if (source.shape.length !== 3 || inputs! % 32 !== 0) return undefined
  const groups = inputs! / 32
  return {
    source,
    recipe,
    shape: [experts!, outputs!, inputs!],
    isSwapped: true,
    codes: { name: `${source.name}_blocks`, dtype: "uint8", shape: [experts!, outputs!, groups, 16] },
    scales: { name: `${source.name}_scales`, dtype: "uint8", shape: [experts!, outputs!, groups] },
    global: undefined,
    group: source.name
  }
}

const quantizedOf = (
  path: string,
  source: ModelTensor,
  choice: QuantizeChoice,
  recipe: QuantizationRecipe
): QuantizedWeight | undefined => {
  const scales = source.shape.length === 2 ? scaleShapeOf(recipe, source.shape) : undefined
  if (scales === undefined) return undefined
  const [codeName, scaleName, globalName] = namesOf(path, choice)
  const isOne = choice.block[0] === 0 && choice.block[1] === 0
  const scaleType = choice.form === "mxfp4" ? "uint8" : scaleTypesOf(recipe, source.dtype)[0]!
  return {
    source,
    recipe,
    shape: source.shape,
    isSwapped: false,
    codes: { name: codeName, dtype: codeTypeOf(recipe), shape: codeShapeOf(recipe, source.shape) },
    scales: { name: scaleName, dtype: scaleType, shape: isOne ? [1] : scales },
    global: hasGlobal(recipe)
      ? { name: globalName, dtype: "float32", shape: choice.storedAs === "modelopt" ? [] : [1] }
      : undefined,
    group: hasGlobal(recipe) ? groupOf(path) : path
  }
}

/** The weight of a module that engines multiply by; undefined for what is no such module. */
const weightOf = ({ path, tensors }: Module): ModelTensor | undefined =>
  tensors.find(({ name, shape }) => (name === `${path}.weight` || name === path) && shape.length >= 2)

/** A weight in the form of a choice; undefined where its shape has none. In MXFP4 gpt-oss has its experts only. */
const madeOf = (
  { kind, path }: Module,
  source: ModelTensor,
  choice: QuantizeChoice,
  recipe: QuantizationRecipe,
  isGptOss: boolean
): QuantizedWeight | undefined => {
  if (!isGptOss || choice.form !== "mxfp4") return quantizedOf(path, source, choice, recipe)
  return kind.spec.structure === "experts" ? blocksOf(source, recipe) : undefined
}

/** Half a model is no result: experts in one tensor have no stored form but that of gpt-oss. */
const stackedFault = ({ name, shape }: ModelTensor, { form }: QuantizeChoice): ModelError =>
  modelError("Unsupported", {
    paramName: name,
    detail: `Its ${shape[0]} experts lie in one tensor, for which no checkpoint has a form of ${form}.`,
    remedy: `Quantize a checkpoint with a tensor for each expert, or leave all of them as they are: --type '*experts*=keep'.`
  })

const isLinear = ({ kind }: Module): boolean => {
  const { dims, structure } = kind.spec
  return structure !== "embedding" && structure !== "norm" && (dims === undefined || dims.some(({ is }) => is === "in"))
}

/** The weights of a model that a choice quantizes; `isKept` says what was stated to stay. */
export const selectWeights = (
  tensors: ReadonlyArray<ModelTensor>,
  config: ConfigObject | undefined,
  choice: QuantizeChoice,
  isKept: (name: string) => boolean
): Result.Result<Selection, ModelError> => {
  const modelType = choice.preset ?? (typeof config?.model_type === "string" ? config.model_type : undefined)
  const family = modelType === undefined ? undefined : findFamily(modelType)
  if (family === undefined || modelType === undefined) {
    return Result.fail(
      modelError("InvalidRules", {
        detail: "Which weights are quantized follows from what tensors mean, and nothing says the model's family.",
        remedy: "Name it: --preset."
      })
    )
  }
  const { modules, unknown } = describeModel({ tensors, config, family, modelType })
  if (unknown.length > 0) {
    return Result.fail(
      modelError("InvalidRules", {
        paramName: unknown[0]!.tensor,
        detail: `The family ${family.name} does not know this tensor, nor ${unknown.length - 1} others.`,
        remedy: "Look at `tensorferry describe MODEL`, or name another family: --preset."
      })
    )
  }
  const recipe = recipeOf(choice)
  const weights: Array<QuantizedWeight> = []
  const kept = new Set<string>()
  for (const module of modules) {
    const source = weightOf(module)
    if (source === undefined) continue
    const { path, kind } = module
    const isChosen =
      quantizedStructures.has(kind.spec.structure) && sourceTypes.has(source.dtype) && !isKept(source.name)
    const made = isChosen ? madeOf(module, source, choice, recipe, family.name === "gpt_oss") : undefined
    if (isChosen && made === undefined && source.shape.length > 2) return Result.fail(stackedFault(source, choice))
    if (made !== undefined) weights.push(made)
    // A stack of experts is a tensor of the module that engines name.
    else if (isLinear(module)) kept.add(source.name === path ? path.slice(0, path.lastIndexOf(".")) : path)
  }
  if (weights.length > 0) return Result.succeed({ weights, kept: [...kept] })
  return Result.fail(
    modelError("InvalidRules", {
      detail: `No weight of the model is quantized by ${choice.form}/${choice.rule}: none is a projection of whole blocks.`,
      remedy: "Choose another form; weights that are quantized already are read by --dtype bfloat16 first."
    })
  )
}
