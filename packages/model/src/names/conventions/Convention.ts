// SPDX-License-Identifier: Apache-2.0
/** A convention: how one system names, joins and places the tensors of a model. */

import * as Result from "effect/Result"
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import type { Placement } from "../../placement/Placement.ts"
import type { Mapping } from "../Mapping.ts"
import { type MappingError, mappingError } from "../MappingError.ts"
import { type QuantizedHolding, unheldForm } from "./unheldForm.ts"

/** What of a convention depends on more than the model. */
export interface ConventionOptions {
  /** Pipeline stages, as the degrees state them. */
  readonly stages: number
  readonly tp: number
  /** The vocabulary is padded so that every rank's share divides by it. */
  readonly vocabularyDivisor?: number
  /** The model without its head, as a class for it alone names it. */
  readonly headless?: true
}

/** How one system names, joins and places the tensors of a model. */
export interface Convention {
  /** As a prefix of the command line: `megatron`, `vllm`. */
  readonly name: string
  /** The project and the state of it that the rules were held against. */
  readonly reference: string
  /** Families that it was held against; undefined where it takes any. */
  readonly families?: ReadonlyArray<string>
  /** Values of `model_type` among these that were recorded. Others of a family follow its rules, and users are told so. */
  readonly recorded?: ReadonlyArray<string>
  /** How it holds quantized weights; undefined where it has them as the checkpoint does. */
  readonly quantized?: QuantizedHolding
  /** Its choice where degrees leave one; what a user states takes precedence. */
  readonly placement: (options: ConventionOptions) => Placement
  /** How the convention names, joins and cuts the tensors of a model. */
  readonly mapping: (structure: ModelStructure, options: ConventionOptions) => Mapping
}

const languageKinds: ReadonlySet<string> = new Set(["language", "mtp"])

/** What of a model a convention was not held against, in words. */
const foreignTo = ({ families }: Convention, { family, stacks }: ModelStructure): string | undefined => {
  if (families === undefined) return undefined
  if (!families.includes(family.name)) return "models of this family"
  // Systems put the language model of such a model below a name of its own.
  return stacks.every(({ kind }) => languageKinds.has(kind)) ? undefined : "what is more than a language model"
}

/** Says that a model is of a type that a convention was not held against; undefined where it was, or where it takes any. */
export const unrecordedType = (
  { name, recorded }: Convention,
  { family, modelType }: ModelStructure
): string | undefined =>
  recorded === undefined || recorded.includes(modelType)
    ? undefined
    : `${name} is unrecorded for models of type ${modelType}: they are named as those of ${family.name}`

/** The rules of a convention for a model. Fails for what nobody has held it against: a guess would look right. */
export const mappingOf = (
  convention: Convention,
  structure: ModelStructure,
  options: ConventionOptions
): Result.Result<Mapping, MappingError> => {
  const foreign = foreignTo(convention, structure)
  const { name, families = [], mapping } = convention
  if (foreign !== undefined)
    return mappingError(
      "unsupported",
      structure.modelType,
      undefined,
      `How ${name} names ${foreign} is not known here.`,
      `State the rules (--map FILE). ${name} is known for language models of ${families.join(", ")}.`
    )
  const unheld = convention.quantized === undefined ? undefined : unheldForm(structure, convention.quantized)
  return unheld === undefined
    ? Result.succeed(mapping(structure, options))
    : mappingError(
        "unsupported",
        unheld.tensor,
        undefined,
        `How ${name} holds ${unheld.what} is not known here.`,
        "Dequantize it in a step of its own (reshard --dtype), or state the rules (--map FILE)."
      )
}
