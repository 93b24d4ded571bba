// SPDX-License-Identifier: Apache-2.0
/**
 * What a stream reads or writes by one call: portions of regions, and small ones joined to batches.
 *
 * Invariant: portions of a region cover it once. What is read with them and not asked for lies between short runs.
 */
import { bitsOf, byteLengthOf, type DType, isSubByte } from "@tensorferry/core/base/DType"
import {
  elementCount,
  equalRegions,
  equalShapes,
  formatRegion,
  formatShape,
  intersect,
  isInside,
  lengthOf,
  type Region,
  regionShape,
  type Shape
} from "@tensorferry/core/base/Region"
import { splitPart } from "@tensorferry/core/planner/Bucketing"
import { sliceTensor, type Tensor, tensorBytes, tensorView, type ViewFault } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import type { StoredPlace } from "../checkpoint/CheckpointIndex.ts"
import { regionRuns } from "../checkpoint/RegionRuns.ts"
import type { Staged } from "./stagingRing.ts"

/** A region of a stored tensor, and the memory that it is to fill. */
export interface StreamRead {
  /** Name of the stored tensor. */
  readonly name: string
  /** Region of the whole tensor. */
  readonly region: Region
  /** Memory of the region's shape, of any device and any strides. */
  readonly into: Tensor
  /** Element type in the file; that of the memory by default. Others are cast by the engine. */
  readonly storedAs?: DType
}

/** What one read or write moves. */
export interface Portion {
  readonly name: string
  /** What is read or written. */
  readonly region: Region
  /** The part of it that is asked for, where that is not all. */
  readonly within?: Region
  /** Memory of what is asked for. */
  readonly tensor: Tensor
  readonly stored: DType
  /** Bytes of the region. */
  readonly byteLength: number
  /** Where these lie in a file, if they follow one another there. */
  readonly at?: { readonly file: string; readonly start: number }
}

/** As the reader of regions has them: runs of so many bytes have calls of their own, and fewer between two are read too. */
const longRunBytes = 64 * 1024
const gapBytes = 64 * 1024
/** Portions of fewer bytes are read together with their neighbours in the file. */
const smallBytes = 256 * 1024

const invalid = (file: string, paramName: string, detail: string) =>
  checkpointError("InvalidRequest", { detail, remedy: "Correct the region, the type or the memory.", file, paramName })

const viewFault = (file: string, name: string) => (fault: ViewFault) => invalid(file, name, `${fault.detail}.`)

/** A region seen from where another begins, or back. */
const moved = (region: Region, from: Region, sign: 1 | -1): Region =>
  region.map(([start, end], dim) => [start + sign * from[dim]![0], end + sign * from[dim]![0]] as const)

/** A region with what lies between its runs, where they are short and near to each other. */
const coveringRegion = (whole: Shape, region: Region, bits: number, limit: number): Region => {
  const covering = [...region]
  let inner = bits / 8
  for (let dim = whole.length - 1; dim >= 0; dim--) {
    const length = lengthOf(region[dim]!)
    const isOne = covering.slice(0, dim).every((interval) => lengthOf(interval) === 1)
    const gap = (whole[dim]! - length) * inner
    if (length < whole[dim]!) {
      const isWorth = !isOne && length * inner < longRunBytes && gap <= gapBytes && whole[dim]! * inner <= limit
      if (!isWorth) return covering
      covering[dim] = [0, whole[dim]!]
    }
    inner *= whole[dim]!
  }
  return covering
}

/** Where a region lies in a file, if it is one run of bytes there. */
const placeOfRun = ({ file, shape, start }: StoredPlace, region: Region, bits: number): Pick<Portion, "at"> => {
  if (!isInside(region, shape)) return {}
  const runs = regionRuns(shape, region, bits)
  if (Result.isFailure(runs) || runs.success.runCount !== 1) return {}
  return { at: { file, start: start + runs.success.walk().offset() } }
}

/** A read in portions that follow one another in the file as far as its shape allows. */
export const portionsOf = (
  file: string,
  { into, name, region, storedAs: stored = into.dtype }: StreamRead,
  limit: number,
  place?: StoredPlace
): Result.Result<ReadonlyArray<Portion>, CheckpointError> => {
  const shape = regionShape(region)
  const whole = place?.shape
  if (!equalShapes(shape, into.shape)) {
    const detail = `Region ${formatRegion(region)} has the shape ${formatShape(shape)}, the memory ${formatShape(into.shape)}.`
    return Result.fail(invalid(file, name, detail))
  }
  if (stored !== into.dtype && isSubByte(stored)) {
    return Result.fail(invalid(file, name, `There is no conversion from ${stored} to ${into.dtype}.`))
  }
  if (shape.includes(0)) return Result.succeed([])
  const covering =
    whole === undefined || isSubByte(stored) || !isInside(region, whole)
      ? region
      : coveringRegion(whole, region, bitsOf(stored), limit)
  const portions: Array<Portion> = []
  for (const local of splitPart({ dtype: stored, shape: regionShape(covering) }, limit)) {
    const read = moved(local, covering, 1)
    const wanted = intersect(read, region)
    if (wanted === undefined) continue
    const tensor = sliceTensor(into, moved(wanted, region, -1))
    if (Result.isFailure(tensor)) return Result.fail(viewFault(file, name)(tensor.failure))
    portions.push({
      ...{ name, stored, region: read, tensor: tensor.success },
      ...(equalRegions(wanted, read) ? {} : { within: moved(wanted, read, -1) }),
      ...(place === undefined ? {} : placeOfRun(place, read, bitsOf(stored))),
      byteLength: byteLengthOf(stored, elementCount(regionShape(read)))
    })
  }
  return Result.succeed(portions)
}

/** The bytes of memory that a portion can be read into, or written from, as they lie. */
export const ownBytes = ({ stored, tensor, within }: Portion): Uint8Array | undefined =>
  within === undefined && stored === tensor.dtype ? tensorBytes(tensor) : undefined

/** What is asked for, as a region of the whole tensor. */
export const wantedRegion = ({ region, within }: Portion): Region =>
  within === undefined ? region : moved(within, region, 1)

/** What is asked for of a portion that lies in a buffer, from a byte of it on. */
export const stagedView = (file: string, { name, region, stored, within }: Portion, buffer: Staged, from = 0) =>
  Result.mapError(
    Result.flatMap(
      tensorView(buffer.storage, stored, regionShape(region), { byteOffset: buffer.byteOffset + from }),
      (view) => (within === undefined ? Result.succeed(view) : sliceTensor(view, within))
    ),
    viewFault(file, name)
  )

/** Bytes of what is asked for, as they are in the file. */
export const neededBytes = ({ stored, tensor }: Portion): number => byteLengthOf(stored, elementCount(tensor.shape))

/** Portions that are read by one call. */
export interface Batch {
  readonly portions: ReadonlyArray<Portion>
  /** Bytes of the file from the first to behind the last. */
  readonly byteLength: number
  /** Where they begin, if there are several. */
  readonly at?: { readonly file: string; readonly start: number }
  /** Where each begins in the buffer, if each is read by itself into one of theirs. */
  readonly offsets?: ReadonlyArray<number>
}

const isSmall = (portion: Portion): portion is Portion & { readonly at: NonNullable<Portion["at"]> } =>
  portion.at !== undefined && portion.byteLength < smallBytes

/** Joins small portions that are near to each other in a file, up to `limit` bytes. */
const joined = (portions: ReadonlyArray<Portion>, limit: number): ReadonlyArray<Batch> => {
  const batches: Array<Batch> = []
  const small = portions.filter(isSmall)
  small.sort((a, b) => (a.at.file === b.at.file ? a.at.start - b.at.start : a.at.file < b.at.file ? -1 : 1))
  for (let first = 0; first < small.length; ) {
    const { file, start } = small[first]!.at
    let end = start + small[first]!.byteLength
    let next = first + 1
    for (; next < small.length; next++) {
      const { at, byteLength } = small[next]!
      const behind = Math.max(end, at.start + byteLength)
      if (at.file !== file || at.start - end > gapBytes || behind - start > limit) break
      end = behind
    }
    const near = small.slice(first, next)
    batches.push({ portions: near, byteLength: end - start, ...(near.length === 1 ? {} : { at: { file, start } }) })
    first = next
  }
  return batches
}

/** Bytes of a batch that are read. */
export const readBytesOf = ({ at, byteLength, portions }: Batch): number =>
  at === undefined ? portions.reduce((sum, portion) => sum + portion.byteLength, 0) : byteLength

/** Where a portion of a batch begins in its buffer. */
export const offsetIn = ({ at, offsets, portions }: Batch, number: number): number =>
  at === undefined ? (offsets?.[number] ?? 0) : portions[number]!.at!.start - at.start

/** Portions that lie in one buffer, each at its place. */
export interface Pack<P extends Portion> {
  readonly parts: ReadonlyArray<{ readonly portion: P; readonly from: number }>
  /** Bytes from the first to behind the last. */
  readonly byteLength: number
}

/** Small portions share a buffer up to so many bytes. */
const packBytes = 4 * 1024 * 1024
/** Where a portion may begin that need not follow the one before it: any element may. */
const packAlignment = 64

/**
 * Puts small portions that follow one another into one buffer, so that one piece of work is for all of them; `isAlone` says
 * which stay by themselves. Dense ones follow each other without gaps, as in a file.
 */
export const packed = <P extends Portion>(
  portions: ReadonlyArray<P>,
  { isAlone = () => false, isDense = false }: { isAlone?: (portion: P) => boolean; isDense?: boolean } = {}
): ReadonlyArray<Pack<P>> => {
  const packs: Array<{ parts: Array<{ portion: P; from: number }>; byteLength: number; isOpen: boolean }> = []
  for (const portion of portions) {
    const last = packs.at(-1)
    const isOpen = portion.byteLength < smallBytes && !isAlone(portion)
    const end = last?.byteLength ?? 0
    const from = isDense ? end : Math.ceil(end / packAlignment) * packAlignment
    if (last?.isOpen === true && isOpen && from + portion.byteLength <= packBytes) {
      last.parts.push({ portion, from })
      last.byteLength = from + portion.byteLength
    } else packs.push({ parts: [{ portion, from: 0 }], byteLength: portion.byteLength, isOpen })
  }
  return packs
}

/**
 * What is read by one call, or into one buffer: small portions that are near to each other in a file, small ones that lie
 * nowhere in one as they are read, and each other by itself. The host's need no buffer.
 */
export const batchesOf = (portions: ReadonlyArray<Portion>, limit: number): ReadonlyArray<Batch> => [
  ...joined(portions, limit),
  ...packed(
    portions.filter((portion) => !isSmall(portion)),
    { isAlone: (portion) => ownBytes(portion) !== undefined }
  ).map(({ byteLength, parts }) => ({
    portions: parts.map(({ portion }) => portion),
    offsets: parts.map(({ from }) => from),
    byteLength
  }))
]
