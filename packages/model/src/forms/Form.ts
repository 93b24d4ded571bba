// SPDX-License-Identifier: Apache-2.0
/**
 * How a weight is stored: as it is, or as numbers with companions that say what they stand for. Each tensor of a form is
 * a map from the weight's dimensions to its own, so that a cut of the weight is a cut of all of them.
 *
 * Invariant: a dimension of a tensor holds `holds` elements for `per` of the weight's; a cut that is not at a multiple of
 * `per` would part what belongs together.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"

/** One dimension of a stored tensor. */
export interface DimMap {
  /** The weight's dimension that it follows; undefined where it is whole whatever the cut. */
  readonly dim: number | undefined
  readonly per: number
  readonly holds: number
}

/** A dimension that is cut with one of the weight. */
export const follows = (dim: number, per = 1, holds = 1): DimMap => ({ dim, per, holds })
/** A dimension that no cut reaches. */
export const stays: DimMap = { dim: undefined, per: 1, holds: 1 }

/** What a tensor is for its weight. */
export const partKinds = [
  "weight",
  "bias",
  "blockScale",
  "groupScale",
  "channelScale",
  "tensorScale",
  "globalScale",
  "zeroPoint",
  "packed",
  "groupIndex",
  "weightShape",
  "adapterA",
  "adapterB",
  "magnitude",
  "state"
] as const
/** One of them. */
export type PartKind = (typeof partKinds)[number]

/** One stored tensor of a form. */
export interface FormPart {
  readonly kind: PartKind
  readonly maps: ReadonlyArray<DimMap>
}

/** How one weight is stored. */
export interface Form {
  /** For people, as "fp8 block 128x128". */
  readonly name: string
  /** Shape of the weight that the numbers stand for, in the order of the family's dimensions. */
  readonly shape: Shape
  /** In the order of the tensors that were given. */
  readonly parts: ReadonlyArray<FormPart>
  /** Inputs of one group, where a tensor says for each of them in which it is. */
  readonly groups?: number
  /** Why the weight cannot be cut at all, or not along its input. */
  readonly uncut?: { readonly along: "any" | "in"; readonly why: string }
}

/** A tensor of a module, with what stands behind the module's name. */
export interface StoredTensor {
  readonly suffix: string
  readonly dtype: DType
  readonly shape: Shape
}
