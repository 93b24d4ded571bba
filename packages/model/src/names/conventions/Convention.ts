// SPDX-License-Identifier: Apache-2.0
/** A convention: how one system names, joins and places the tensors of a model. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import type { Placement } from "../../placement/Placement.ts"
import type { Mapping } from "../Mapping.ts"

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

export interface Convention {
  readonly name: string
  /** The project and the state of it that the rules were held against. */
  readonly reference: string
  /** Its choice where degrees leave one; what a user states takes precedence. */
  readonly placement: (options: ConventionOptions) => Placement
  readonly mapping: (structure: ModelStructure, options: ConventionOptions) => Mapping
}
