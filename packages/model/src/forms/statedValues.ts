// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that say something of a weight's own shape or places, as `weight_shape` does: what an engine's loader expects
 * in a shard by itself.
 */
import type { Interval } from "@tensorferry/core/base/Region"
import type { Form } from "./Form.ts"

/** What such a tensor holds, in the order of its elements. */
export type StatedValues =
  | { readonly _tag: "Shape"; readonly lengths: ReadonlyArray<number> }
  /** Groups of the inputs in order, counted from the first that is held. */
  | { readonly _tag: "Groups"; readonly length: number; readonly group: number }

/**
 * What a part states of a weight cut to `interval` of its dimension `dim`; undefined for parts that hold what no shape says.
 */
export const statedValues = (
  form: Form,
  part: number,
  cut: { readonly dim: number; readonly interval: Interval } | undefined
): StatedValues | undefined => {
  const { kind, maps } = form.parts[part]!
  const lengthOf = (dim: number): number => (cut?.dim === dim ? cut.interval[1] - cut.interval[0] : form.shape[dim]!)
  if (kind === "weightShape") return { _tag: "Shape", lengths: form.shape.map((_, dim) => lengthOf(dim)) }
  // Inputs in an order of their own are never cut, so that their groups stay as they are.
  if (kind !== "groupIndex" || form.groups === undefined || form.uncut !== undefined) return undefined
  return { _tag: "Groups", length: lengthOf(maps[0]!.dim!), group: form.groups }
}

/** The values as numbers. */
export const listValues = (values: StatedValues): ReadonlyArray<number> =>
  values._tag === "Shape"
    ? values.lengths
    : Array.from({ length: values.length }, (_, at) => Math.floor(at / values.group))
