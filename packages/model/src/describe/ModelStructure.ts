// SPDX-License-Identifier: Apache-2.0
/**
 * A model by what its tensors mean: stacks of layers, and modules whose weights are cut alike, each with the form in which
 * it is stored.
 */

import type { Form } from "../forms/Form.ts"
import type { QuantizationConfig } from "../forms/QuantizationConfig.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Family, ModuleSpec } from "../structure/Family.ts"
import type { ConfigObject } from "../structure/ModelConfig.ts"
import type { ModelNumbers } from "../structure/ModelNumbers.ts"
import type { Run } from "./DimLayout.ts"

/** What a run of layers is for. */
export type StackKind = "language" | "encoder" | "mtp" | "vision" | "audio" | "projector"

/** Layers with one numbering. */
export interface Stack {
  readonly kind: StackKind
  /** What its tensors' names begin with. */
  readonly prefix: string
  /** Numbers of the layers, ascending. */
  readonly layers: ReadonlyArray<number>
}

/** What modules of one kind have in common, shape for shape. */
export interface ModuleKind {
  readonly spec: ModuleSpec
  readonly form: Form
  /** What is packed along each of the weight's dimensions; empty where it is never cut. */
  readonly runs: ReadonlyArray<ReadonlyArray<Run>>
  /** The weight's dimension that counts experts. */
  readonly expertDim: number | undefined
}

/** Where in a model a module is. */
export interface ModuleSite {
  readonly path: string
  /** Position among the structure's stacks; undefined for what stands outside of them. */
  readonly stack: number | undefined
  readonly layer: number | undefined
  readonly stage: "first" | "last" | undefined
  /** Number of the expert where the name holds it, and the path of all of them. */
  readonly expert: number | undefined
  readonly expertsOf: string | undefined
}

/** A module of the model and its tensors. */
export interface Module extends ModuleSite {
  readonly kind: ModuleKind
  /** In the order of the form's parts. */
  readonly tensors: ReadonlyArray<ModelTensor>
}

/** A tensor that is not understood, and why. */
export interface Unknown {
  readonly tensor: string
  /** Undefined where the family has no such name. */
  readonly why: string | undefined
  /** The module that its name says, where the family has it. */
  readonly site?: ModuleSite & { readonly spec: ModuleSpec }
}

/** A whole model. */
export interface ModelStructure {
  readonly family: Family
  /** As the config or the user names it. */
  readonly modelType: string
  /** What the config says of the language model. */
  readonly config: ConfigObject | undefined
  readonly quantization: QuantizationConfig | undefined
  readonly numbers: ModelNumbers
  readonly stacks: ReadonlyArray<Stack>
  readonly modules: ReadonlyArray<Module>
  readonly unknown: ReadonlyArray<Unknown>
  /** Names that the model does not store, and the tensor that each of them is. */
  /** Whether the head is the embedding, stored or not. */
  readonly isTied: boolean
  readonly aliases: ReadonlyArray<{ readonly name: string; readonly of: string }>
}
