// SPDX-License-Identifier: Apache-2.0
/**
 * What is said of a model family: the names of its modules and what the dimensions of their weights are for. Data only;
 * what follows from it for a model is in `describeModel`.
 */
import type { ModelNumbers, NumberFields } from "./ModelNumbers.ts"
import type { Role } from "./Roles.ts"

/** One dimension of a weight, in the order in which it is stored. */
export interface Dim {
  /** Output and input of a projection; the experts of a stacked one. */
  readonly is: "out" | "in" | "experts" | "other"
  /** What is packed along it, in order; nothing where it is never cut. */
  readonly roles: ReadonlyArray<Role>
  /** It has the length of the hidden state, which tells a stack that is stored the other way round. */
  readonly isHidden?: true
  /** Rows that alternate, as gate and up of one unit do; 1 by default. */
  readonly each?: number
}

/** A length that follows from a config: a sum of products of its numbers. */
export type Length = ReadonlyArray<ReadonlyArray<keyof ModelNumbers | number>>

/** What a module is of a set of modules that a layer has all of, or none. */
export interface Membership {
  readonly set: string
  /** One of several modules fills a slot; one module may fill several. */
  readonly slots: ReadonlyArray<string>
}

/** Whether a module has a bias: always, never, or as the first of these fields says that a config states. */
export type BiasRule = "always" | "never" | ReadonlyArray<string>

/** A tensor that a module has beside its weight. */
export interface Companion {
  readonly suffix: string
  readonly shape: ReadonlyArray<Length>
  /** There need not be one. */
  readonly isOptional?: true
}

/** A module, or a tensor that stands by itself. */
export interface ModuleSpec {
  /** Below the layer or the stack, `{}` where an expert's number stands. */
  readonly path: string
  /** `tensor`: the path is the tensor's own name, and companions have it in front, as `_scales`. */
  readonly as: "module" | "tensor"
  /** What is cut alike, for people. */
  readonly structure: string
  /** Undefined for what every rank holds whole. */
  readonly dims: ReadonlyArray<Dim> | undefined
  /** Lengths of its weight, where they do not follow from its dimensions; undefined where nothing says one. */
  readonly shape?: ReadonlyArray<Length | undefined>
  /** It is one number. */
  readonly isScalar?: true
  /** Undefined for what a layer may have by itself. */
  readonly member?: Membership
  /** Undefined where modules of a kind only have to be alike. */
  readonly bias?: BiasRule
  readonly companions?: ReadonlyArray<Companion>
}

/** A module outside of the layers. */
export interface EndSpec extends ModuleSpec {
  readonly stage: "first" | "last"
}

/** Layers with one numbering, and what stands around them. */
export interface StackSpec {
  readonly kind: "language" | "encoder" | "mtp"
  /** What names begin with; a model has one of them. */
  readonly prefixes: ReadonlyArray<string>
  /** Below the prefix, `{}` where the layer's number stands. */
  readonly layers: string
  readonly modules: ReadonlyArray<ModuleSpec>
  /** Below the prefix. */
  readonly ends: ReadonlyArray<EndSpec>
  /** Sets of modules that every layer has: one of each list. */
  readonly needs?: ReadonlyArray<ReadonlyArray<string>>
}

/** A tower that sees or hears: whole on every rank of the first stage. */
export interface TowerSpec {
  readonly kind: "vision" | "audio" | "projector"
  readonly prefixes: ReadonlyArray<string>
}

/** A family of models. */
export interface Family {
  readonly name: string
  /** Values of `model_type` that it covers. */
  readonly modelTypes: ReadonlyArray<string>
  readonly stacks: ReadonlyArray<StackSpec>
  readonly towers?: ReadonlyArray<TowerSpec>
  /** Whole names outside of all stacks, as `lm_head` is. */
  readonly ends?: ReadonlyArray<EndSpec>
  /** Layers of the first stack from `num_hidden_layers` on predict further tokens. */
  readonly hasExtraLayers?: true
  /** Where the family has other names for numbers than most. */
  readonly fields?: NumberFields
  /** What the family's own code takes for fields that a config leaves out. */
  readonly defaults?: { readonly [field: string]: number }
  /** Whether the head is the embedding where the config says nothing; of some model types where they are listed. */
  readonly isTied?: true | ReadonlyArray<string>
  /** Paths of modules and of companions that models of a type do without, where others of the family have them. */
  readonly lacks?: { readonly [modelType: string]: ReadonlyArray<string> }
}
