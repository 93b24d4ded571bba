// SPDX-License-Identifier: Apache-2.0
/**
 * The values that codes and scales stand for, as those who wrote them read them. Pure arithmetic on what was read.
 *
 * Invariant: each product is one float32 operation, rounded once, in the order of the reference: a number times its scale,
 * or a number times the scale of its group that was first combined with that of the tensor.
 */
import { elementCount, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import { e2m1Values } from "./codes.ts"

/**
 * Scales beside a weight. In each dimension one scale stands for `per` elements; for `Infinity` one stands for all.
 * `shape` is theirs as stored; it may lack trailing dimensions.
 */
export interface ScaleGrid {
  readonly shape: Shape
  readonly per: ReadonlyArray<number>
}

/** The scales that a region of the weight needs. */
export const scalesFor = ({ per, shape }: ScaleGrid, region: Region): Region =>
  shape.map((length, dim) => {
    const size = per[dim]!
    if (size === Number.POSITIVE_INFINITY) return [0, length] as const
    const [start, stop] = region[dim]!
    return [Math.floor(start / size), Math.ceil(stop / size)] as const
  })

/** Calls `visit` for each row of a region: where it begins, and the first scale of its row of scales. */
const eachRow = (
  region: Region,
  { per }: ScaleGrid,
  scales: Region,
  visit: (start: number, firstScale: number) => void
): void => {
  const lengths = regionShape(region)
  const scaleLengths = regionShape(scales)
  const rowLength = lengths.at(-1) ?? 1
  const rows = rowLength === 0 ? 0 : elementCount(lengths) / rowLength
  const outer = Math.max(0, lengths.length - 1)
  const index = new Array<number>(outer).fill(0)
  for (let row = 0; row < rows; row++) {
    let scale = 0
    for (let dim = 0; dim < scaleLengths.length; dim++) {
      scale *= scaleLengths[dim]!
      if (dim >= outer || per[dim] === Number.POSITIVE_INFINITY) continue
      scale += Math.floor((index[dim]! + region[dim]![0]) / per[dim]!) - scales[dim]![0]
    }
    visit(row * rowLength, scale)
    for (let dim = outer - 1; dim >= 0; dim--) {
      index[dim]! += 1
      if (index[dim]! < lengths[dim]!) break
      index[dim] = 0
    }
  }
}

/**
 * Multiplies the values of a region by their scales, in place. `scales` are those of `scalesFor`, dense. With `product`,
 * value and scale are combined by it instead, as by a division.
 */
export const applyScales = (
  values: Float32Array,
  region: Region,
  grid: ScaleGrid,
  scales: Float32Array,
  product?: (value: number, scale: number) => number
): void => {
  const scaleRegion = scalesFor(grid, region)
  const last = region.length - 1
  const rowLength = last < 0 ? 1 : region[last]![1] - region[last]![0]
  const per = grid.shape.length > last && last >= 0 ? grid.per[last]! : Number.POSITIVE_INFINITY
  const isWhole = per === Number.POSITIVE_INFINITY
  const [first, firstScale] = last < 0 || isWhole ? [0, 0] : [region[last]![0], scaleRegion[last]![0]]
  eachRow(region, grid, scaleRegion, (start, scaleStart) => {
    // All that share a scale, one stretch after the other.
    for (let at = 0, group = 0; at < rowLength; group++) {
      const end = isWhole ? rowLength : Math.min(rowLength, (firstScale + group + 1) * per - first)
      const scale = scales[scaleStart + group]!
      if (product === undefined) for (; at < end; at++) values[start + at]! *= scale
      else for (; at < end; at++) values[start + at] = product(values[start + at]!, scale)
    }
  })
}

/**
 * Pairs of 4-bit floats, the low half of a byte first, as values. `skip` leaves out the first, and `count` are wanted in
 * all of `rows` rows of `rowBytes` bytes. `plusZero` reads the code of minus zero as zero.
 */
export const unpackE2m1 = (
  bytes: Uint8Array,
  {
    count,
    plusZero,
    rowBytes,
    skip
  }: { readonly rowBytes: number; readonly skip: number; readonly count: number; readonly plusZero: boolean }
): Float32Array => {
  const rows = rowBytes === 0 ? 0 : bytes.length / rowBytes
  const values = new Float32Array(rows * count)
  for (let row = 0; row < rows; row++) {
    for (let at = 0; at < count; at++) {
      const place = at + skip
      const byte = bytes[row * rowBytes + (place >> 1)]!
      const code = place % 2 === 0 ? byte & 15 : byte >> 4
      values[row * count + at] = plusZero && code === 8 ? 0 : e2m1Values[code]!
    }
  }
  return values
}

/** A power of two by its byte. Beyond float32 it is infinite, and then zero times it is no number. */
export const powerOfTwo = (byte: number): number => Math.fround(2 ** (byte - 127))

/** The same without going through an infinite scale: zero stays zero. */
export const shiftedByPower = (value: number, byte: number): number => Math.fround(value * 2 ** (byte - 127))
