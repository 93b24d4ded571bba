// SPDX-License-Identifier: Apache-2.0
/**
 * Which parts of one rank's traffic to another form a message, and where each lies in it. Pure functions of what both
 * ends know alike (shapes, types, order and the agreed size), so both ends cut at the same places.
 */
import { bitsOf, byteLengthOf, type DType } from "../base/DType.ts"
import { elementCount, fullRegion, type Interval, type Region, type Shape } from "../base/Region.ts"

/** Parts of a packed message begin at multiples of this many bytes, so that every element type is aligned. */
export const partAlignment = 16

/** The type and shape of a part, which both ends know. */
export interface PartSpec {
  readonly dtype: DType
  readonly shape: Shape
}

/** Bytes of the part when dense, rounded up to whole bytes for sub-byte types. */
export const partByteLength = (part: PartSpec): number => byteLengthOf(part.dtype, elementCount(part.shape))

/**
 * Regions that cut a part into pieces of at most `limit` bytes: along the outermost dimension that allows it, so that
 * pieces stay as dense as they can be. A piece is never smaller than one innermost run of whole bytes, even if that
 * exceeds the limit.
 */
export const splitPart = (part: PartSpec, limit: number): ReadonlyArray<Region> => {
  if (partByteLength(part) <= limit) return [fullRegion(part.shape)]
  const dim = part.shape.findIndex((length) => length > 1)
  if (dim < 0) return [fullRegion(part.shape)]
  const rowBits = elementCount(part.shape.slice(dim + 1)) * bitsOf(part.dtype)
  // Rows of sub-byte types are taken in groups that make whole bytes.
  const group = rowBits % 8 === 0 ? 1 : rowBits % 4 === 0 ? 2 : rowBits % 2 === 0 ? 4 : 8
  const groupBytes = (rowBits * group) / 8
  const length = part.shape[dim]!
  const pieces: Array<Region> = []
  if (groupBytes > limit && group === 1) {
    for (let row = 0; row < length; row++) {
      const inner = splitPart({ dtype: part.dtype, shape: part.shape.slice(dim + 1) }, limit)
      for (const region of inner) pieces.push([...fullRegion(part.shape.slice(0, dim)), [row, row + 1], ...region])
    }
    return pieces
  }
  const rows = Math.max(1, Math.floor(limit / groupBytes)) * group
  for (let start = 0; start < length; start += rows) {
    const interval: Interval = [start, Math.min(length, start + rows)]
    pieces.push(fullRegion(part.shape).map((whole, at) => (at === dim ? interval : whole)))
  }
  return pieces
}

/** Where a part lies in its message; offsets are multiples of `partAlignment`. */
export interface PackedPart {
  /** Position in the list that was cut. */
  readonly index: number
  readonly byteOffset: number
}

/** Parts that travel together; the length ends with the last part. */
export interface PackedMessage {
  readonly parts: ReadonlyArray<PackedPart>
  readonly byteLength: number
}

const alignUp = (value: number): number => Math.ceil(value / partAlignment) * partAlignment

/** Fills messages of at most `limit` bytes in order; a larger part gets a message of its own. */
export const packParts = (byteLengths: ReadonlyArray<number>, limit: number): ReadonlyArray<PackedMessage> => {
  const messages: Array<{ parts: Array<PackedPart>; byteLength: number }> = []
  let open: { parts: Array<PackedPart>; byteLength: number } | undefined
  for (const [index, byteLength] of byteLengths.entries()) {
    const byteOffset = open === undefined ? 0 : alignUp(open.byteLength)
    if (open === undefined || byteOffset + byteLength > limit) {
      open = { parts: [{ index, byteOffset: 0 }], byteLength }
      messages.push(open)
    } else {
      open.parts.push({ index, byteOffset })
      open.byteLength = byteOffset + byteLength
    }
  }
  return messages
}
