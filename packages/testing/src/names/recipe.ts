// SPDX-License-Identifier: Apache-2.0
/** Recipes of the language of mappings as random mappings use them: plain data, which the language's own types accept. */

/** How a tensor is made. A text is the name of a tensor of the checkpoint. */
export type RandomRecipe =
  | string
  | { readonly concat: ReadonlyArray<RandomRecipe>; readonly dim?: number }
  | { readonly interleave: ReadonlyArray<RandomRecipe>; readonly groups: number | "kvHeads" }
  | { readonly stack: RandomRecipe; readonly over: string }
  | { readonly unstack: RandomRecipe; readonly at: string }
  | { readonly part: RandomRecipe; readonly index: number; readonly lengths: ReadonlyArray<number> }
  | { readonly transpose: RandomRecipe; readonly axes: ReadonlyArray<number> }
  | { readonly split: RandomRecipe; readonly dim: number; readonly inner: number }
  | { readonly merge: RandomRecipe; readonly dim: number }
  | { readonly squeeze: RandomRecipe; readonly dim: number }
  | { readonly expand: RandomRecipe; readonly dim: number }
  | { readonly pad: RandomRecipe; readonly multipleOf: number; readonly dim?: number }
  | { readonly cut: RandomRecipe; readonly dim?: number; readonly uneven?: true }
  | { readonly onFirst: RandomRecipe }
  | { readonly add: number; readonly to: RandomRecipe }
  | { readonly negExp: RandomRecipe }
  | { readonly either: ReadonlyArray<RandomRecipe> }
