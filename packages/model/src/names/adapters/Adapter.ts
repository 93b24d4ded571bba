// SPDX-License-Identifier: Apache-2.0
/**
 * What an adapter does to a base: tensor by tensor of the base, which tensors of the adapter change it and how.
 *
 * Invariant: the changes of a tensor are in the order in which they apply: replaced in full, then a product, a bias, rows.
 */
import type { Shape } from "@tensorferry/core/base/Region"

/** A tensor of an adapter's file, or of a base. */
export interface NamedShape {
  readonly name: string
  readonly shape: Shape
}

/** Values of `model_type` whose stacked experts have their inputs first. */
export const inputsFirstTypes: ReadonlySet<string> = new Set(["gpt_oss", "aria_text", "openai_privacy_filter"])

/** The model that an adapter is for. */
export interface AdapterBase {
  /** Its tensors under their published names. */
  readonly tensors: ReadonlyArray<NamedShape>
  /** Other names of a tensor's storage, as of a tied head: the other name, and the one among `tensors`. */
  readonly aliases?: ReadonlyMap<string, string>
  /** Whether tensors stand in the order in which modules declare them; files of tensors have an order of their own. */
  readonly isDeclared?: boolean
  /** Whether matrices of stacked experts have their inputs first, where lengths do not say it. */
  readonly hasInputsFirst?: boolean
}

/** `scale * B @ A` is added to a matrix, or to each matrix of a stack. */
export interface LowRank {
  readonly _tag: "LowRank"
  /** The tensor of the base. */
  readonly target: string
  /** Its shape: two dimensions, or three of which the first counts experts. */
  readonly shape: Shape
  readonly module: string
  /** The parameter, where it is a bare one and not a module's weight. */
  readonly parameter: string | undefined
  readonly kind: "linear" | "embedding" | "parameter"
  readonly rank: number
  readonly alpha: number
  readonly scale: number
  /** Names in the adapter: `a` is [rank, in], `b` is [out, rank]. Of a stack, `a` is [experts * rank, in] expert by expert, and `b` is [out, rank * experts], where the expert runs faster. */
  readonly a: string
  readonly b: string
  readonly experts: number | undefined
  /** Whether the base has the inputs first: the product is added transposed. */
  readonly isTransposed: boolean
  /** The tensor that states the norm of each output. */
  readonly magnitude: string | undefined
}

/** The tensor of the adapter takes the place of the base's; `isNew` where the base has none. */
export interface WholeTensor {
  readonly _tag: "Whole"
  readonly target: string
  readonly tensor: string
  readonly isNew: boolean
}

/** `scale * tensor` is added. */
export interface AddedBias {
  readonly _tag: "Added"
  readonly target: string
  readonly tensor: string
  readonly scale: number
}

/** Rows of the base become the rows of the tensor, in this order. */
export interface TrainedRows {
  readonly _tag: "Rows"
  readonly target: string
  readonly tensor: string
  readonly rows: ReadonlyArray<number>
}

/** One change of one tensor of the base. */
export type AdapterChange = LowRank | WholeTensor | AddedBias | TrainedRows

/** Two tensors of an adapter that must be each other's transposes, since the base has one storage for what they change; with one row they are equal. */
export interface TiedPair {
  readonly tensor: string
  readonly transposed: string
  /** Rows of `tensor`, columns of the other. */
  readonly rows: number
}

/** A LoRA adapter: its configuration, and the pairs of matrices by the weight that each changes. */
export interface Adapter {
  /** Changes by the name of the tensor that they change. */
  readonly changes: ReadonlyMap<string, ReadonlyArray<AdapterChange>>
  /** Tensors of the adapter that must equal one of the base: copies that say nothing. */
  readonly copies: ReadonlyArray<{ readonly tensor: string; readonly of: string }>
  readonly tied: ReadonlyArray<TiedPair>
  /** Names that no longer share storage with another once the adapter is merged. */
  readonly untied: ReadonlyArray<string>
}
