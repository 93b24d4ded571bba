// SPDX-License-Identifier: Apache-2.0
/**
 * How scales lie beside a weight, read off the shapes: one for the tensor, one per row, one per group of columns, or one
 * per block.
 */
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { type DimMap, type FormPart, follows, stays } from "./Form.ts"

/** Sizes of blocks that are in use, the likelier first; a config's own takes precedence. */
const usualBlocks = [128, 64, 32, 16, 256, 512, 1024, 8, 4, 2] as const

/** Elements of the weight for one scale; undefined where no size gives this many. */
const blockOf = (length: number, scales: number, stated: number | undefined): number | undefined => {
  const fits = (block: number): boolean => Math.ceil(length / block) === scales
  if (stated !== undefined && fits(stated)) return stated
  return length % scales === 0 ? length / scales : usualBlocks.find(fits)
}

/**
 * The map of scales of `shape` onto a weight; undefined where they do not fit. `dims` names the weight's dimension behind
 * each of the weight's stored ones, which scales follow in order.
 */
export const scalePart = (
  weight: Shape,
  shape: Shape,
  stated: { readonly rows?: number | undefined; readonly columns?: number | undefined } = {},
  dims: ReadonlyArray<number> = weight.map((_, dim) => dim)
): FormPart | undefined => {
  if (elementCount(shape) === 1) return { kind: "tensorScale", maps: shape.map(() => stays) }
  const last = dims.length - 1
  const mapOf = (at: number, scales: number): DimMap | undefined => {
    const length = weight[dims[at]!]!
    if (scales === length) return follows(dims[at]!)
    if (scales === 1) return stays
    if (scales > length) return undefined
    const block = blockOf(length, scales, at === last ? stated.columns : at === last - 1 ? stated.rows : undefined)
    return block === undefined ? undefined : follows(dims[at]!, block)
  }
  if (shape.length > dims.length) return undefined
  const maps = shape.map((scales, at) => mapOf(at, scales))
  if (maps.some((map) => map === undefined)) return undefined
  const known = maps as ReadonlyArray<DimMap>
  // A short shape follows the first dimensions: one scale per row, or per expert, without the dimensions of length 1.
  const isShort = shape.length < dims.length
  if (isShort && known.some(({ per, dim }) => per > 1 || dim === undefined)) return undefined
  const inner = isShort ? stays : known[last]!
  const outer = known[last - 1]
  const kind =
    inner.dim === undefined ? "channelScale" : outer === undefined || outer.per === 1 ? "groupScale" : "blockScale"
  return { kind, maps: known }
}

/** What a form with these scales is called, behind the type of its numbers. */
export const scaleText = ({ kind, maps }: FormPart): string => {
  const sizes = maps.slice(-2).map(({ per }) => per)
  switch (kind) {
    case "tensorScale":
      return "per tensor"
    case "channelScale":
      return "per channel"
    case "blockScale":
      return `block ${sizes.join("x")}`
    default:
      return `group ${sizes.at(-1)}`
  }
}
