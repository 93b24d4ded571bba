// SPDX-License-Identifier: Apache-2.0
/**
 * What is said where a model is not understood: in a few lines which model it is, what is not known, what is, and what to
 * write. Never a list of all names.
 */

import { families, modelTypes } from "../families/families.ts"
import { quantizationOf } from "../forms/QuantizationConfig.ts"
import { LayoutError, type ModelTensor } from "../layout/ModelLayout.ts"
import type { Family } from "../structure/Family.ts"
import type { ConfigObject } from "../structure/ModelConfig.ts"
import type { ModelStructure, Unknown } from "./ModelStructure.ts"
import { nameTable, patternOf } from "./NameTable.ts"

/** Names and types come from files. */
const short = (text: string): string => (text.length > 120 ? `${text.slice(0, 117)}...` : text)

const headline = (modelType: string | undefined, method: string | undefined): string =>
  `model_type ${modelType === undefined ? "is not stated" : `"${short(modelType)}"`}, quant_method ${method === undefined ? "none" : `"${short(method)}"`}`

const byHand =
  'State them by hand in a rules or layout file, as in rules: [{match: "*.NAME.weight", shard: 0}] (or shard: replicate), or pass --default replicate.'

/** Tensors of a known family that it has no name or no form for. */
export const unknownTensors = (structure: ModelStructure, unknown: ReadonlyArray<Unknown>): LayoutError => {
  const { family, modelType, quantization } = structure
  const forms = unknown.filter(({ why }) => why !== undefined)
  const [what, first] =
    forms.length === 0
      ? [`The family ${family.name} has no names like theirs`, undefined]
      : [`${forms.length} are in a form or shape that is not known`, forms[0]]
  return new LayoutError({
    kind: "NoRule",
    paramNames: unknown.map(({ tensor }) => short(tensor)),
    detail: `${unknown.length} tensors are not understood (${headline(modelType, quantization?.method)}). ${what}${first === undefined ? "" : `: ${short(first.tensor)}: ${first.why}`}. Known forms: bf16, fp16, fp32; fp8 per tensor, channel or block; mxfp8; mxfp4; nvfp4; int8; packed integers of compressed-tensors, GPTQ and AWQ; bitsandbytes; LoRA and DoRA.`,
    remedy: byHand
  })
}

/** Modules that a family names: the more of them, the less its names say of a model that has them. */
const breadth = ({ ends = [], stacks, towers = [] }: Family): number =>
  stacks.reduce((sum, stack) => sum + stack.modules.length + stack.ends.length, ends.length + towers.length)

/** The family whose names a model has, though its type is another: of several the one that has the fewest others. */
const twinOf = (tensors: ReadonlyArray<ModelTensor>): Family | undefined => {
  const patterns = new Set(tensors.map(({ name }) => patternOf(name).pattern))
  if (patterns.size === 0) return undefined
  const alike = families.filter((family) => {
    const look = nameTable(family)
    for (const pattern of patterns) if (look(pattern) === undefined) return false
    return true
  })
  return alike.reduce<Family | undefined>(
    (best, family) => (best === undefined || breadth(family) < breadth(best) ? family : best),
    undefined
  )
}

/** A model of a type that no family covers; its twin is offered, not taken. */
export const unknownModel = (tensors: ReadonlyArray<ModelTensor>, config: ConfigObject | undefined): LayoutError => {
  const type = config?.model_type
  const twin = twinOf(tensors)
  const offer =
    twin === undefined
      ? ""
      : `Its names are those of ${twin.name}: pass --preset ${twin.name} if it is built like that. `
  return new LayoutError({
    kind: "NoRule",
    paramNames: tensors.map(({ name }) => short(name)),
    detail: `No family is known for these ${tensors.length} tensors (${headline(typeof type === "string" ? type : undefined, quantizationOf(config)?.method)}). Known types: ${modelTypes.join(", ")}.`,
    remedy: `${offer}${byHand}`
  })
}
