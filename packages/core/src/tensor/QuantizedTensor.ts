// SPDX-License-Identifier: Apache-2.0
/**
 * A tensor stored as narrow data with scales. The recipe names how the two make a value: equal recipes give equal bytes
 * for equal values, so recipes are compared before anything is transferred, and one that is not known here is refused.
 */
import type { Shape } from "../base/Region.ts"
import type { Tensor } from "./Tensor.ts"

/** Elements that share a scale. */
export const mxBlockSize = 32

/** How a block's scale follows from its largest magnitude. */
export const scaleRules = ["ocp_floor", "rceil", "rceil_te"] as const
/** One of `scaleRules`. */
export type ScaleRule = (typeof scaleRules)[number]

/**
 * How scales lie in memory. `rowMajor`: one per block, in the order of the blocks; every aligned region of the tensor has a
 * region of scales. `swizzled`: one dimension of padded tiles, as matrix units read them (see `transform/ScaleSwizzle`); no
 * region of the tensor is a region of these, so they are never cut.
 */
export const scaleLayouts = ["rowMajor", "swizzled"] as const
/** One of `scaleLayouts`. */
export type ScaleLayout = (typeof scaleLayouts)[number]

/** Block scaling along the last dimension: `value = data * 2^(scale - 127)` for one scale byte per `blockSize` elements. */
export interface QuantizationRecipe {
  readonly name: "mxfp8"
  readonly blockSize: 32
  readonly rule: ScaleRule
  /** `rowMajor` where it is not said. */
  readonly layout?: ScaleLayout
}

export interface QuantizedTensor {
  readonly _tag: "QuantizedTensor"
  /** Shape of the logical tensor, `float8_e4m3fn`. */
  readonly data: Tensor
  /**
   * `float8_e8m0fnu`. Row-major: the shape of the logical tensor with the last dimension divided by the block size.
   * Swizzled: one dimension.
   */
  readonly scale: Tensor
  readonly recipe: QuantizationRecipe
}

/** Tells the two kinds of tensors of a dictionary apart. */
export const isQuantized = (value: Tensor | QuantizedTensor): value is QuantizedTensor => "_tag" in value

/** The recipe of MXFP8: blocks of 32 along the last dimension. */
export const mxfp8Recipe = (rule: ScaleRule = "rceil", layout: ScaleLayout = "rowMajor"): QuantizationRecipe => ({
  name: "mxfp8",
  blockSize: mxBlockSize,
  rule,
  layout
})

/** How the recipe's scales lie in memory: row-major where it does not say. */
export const layoutOf = (recipe: QuantizationRecipe): ScaleLayout => recipe.layout ?? "rowMajor"

/** Everything that decides the bytes, as text. */
export const recipeId = (recipe: QuantizationRecipe): string =>
  `${recipe.name}/${recipe.blockSize}/${recipe.rule}/${layoutOf(recipe)}`

/** What of a recipe is not known here; recipes may come from files and other processes. */
export const recipeFault = (recipe: QuantizationRecipe): string | undefined => {
  if (recipe.name !== "mxfp8") return `the recipe ${String(recipe.name)} is not known`
  if (recipe.blockSize !== mxBlockSize)
    return `blocks of ${String(recipe.blockSize)} are not known, only of ${mxBlockSize}`
  if (!scaleRules.includes(recipe.rule)) return `the scale rule ${String(recipe.rule)} is not known`
  return scaleLayouts.includes(layoutOf(recipe)) ? undefined : `the scale layout ${String(recipe.layout)} is not known`
}

/** Shape of row-major scales; undefined where the last dimension is not whole blocks. */
export const scaleShapeOf = (shape: Shape): Shape | undefined => {
  const last = shape.at(-1)
  return last === undefined || last % mxBlockSize !== 0 ? undefined : [...shape.slice(0, -1), last / mxBlockSize]
}
