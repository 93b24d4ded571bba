// SPDX-License-Identifier: Apache-2.0
/**
 * A tensor as one rank keeps it: the pieces of the model that it holds, and the views of it that are planned.
 *
 * Experts that one tensor holds together are planned one by one, under the tensor's name and the expert's number:
 * `experts.gate_up_proj[17]`. Padding is planned by nobody and stays zero.
 */

import { bitsOf, type DType, isSubByte } from "@tensorferry/core/base/DType"
import {
  chunkInterval,
  elementCount,
  formatShape,
  fullRegion,
  type Interval,
  isEmptyRegion,
  lengthOf,
  type Region,
  type Shape
} from "@tensorferry/core/base/Region"
import { type ParameterMetadata, parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import * as Result from "effect/Result"
import { type LayoutError, layoutError } from "./LayoutError.ts"
import { expertDegrees, type ParallelConfig, type RankPlace } from "./ParallelConfig.ts"
import { blockLengths, type Cut, cutDimension, heldRows } from "./TensorCut.ts"
import type { PlacedTensor } from "./TensorPlacement.ts"

/** A region of the whole tensor and where it lies in the local one; both have the same shape. */
export interface Piece {
  readonly local: Region
  readonly global: Region
}

/** A tensor as one rank holds it: type, shape, and where its pieces lie in the whole. */
export interface LocalTensor {
  readonly name: string
  readonly dtype: DType
  /** Padding included. */
  readonly shape: Shape
  /** In order of local position; none is empty, and they do not overlap. */
  readonly pieces: ReadonlyArray<Piece>
  /** Elements that belong to no piece. */
  readonly padding: Region | undefined
  /** Name of the model's tensor that the pieces are of; not `name` for tensors that the model shares. */
  readonly storedAs: string
  /** The local tensor whose storage this one shares on this rank. */
  readonly aliasOf: string | undefined
  /** False on all data-parallel replicas but one. */
  readonly isPrimary: boolean
}

/** A parameter of the plan: a view of a local tensor. */
export interface LocalParameter {
  /** Without groups, and with rank 0 as its owner: what all ranks at the same position have in common. */
  readonly metadata: ParameterMetadata
  readonly tensor: string
  readonly view: Region
  /** In which groups it is held. */
  readonly groups: "dense" | "expert"
}

/** What a position holds of one tensor. */
export interface Holding {
  readonly tensor: PlacedTensor
  readonly degree: number
  /** Undefined where the dimension is not cut. */
  readonly cut: Cut | undefined
  /** Experts of a fused tensor that the position holds, in local order. */
  readonly experts: ReadonlyArray<Interval> | undefined
}

const total = (intervals: ReadonlyArray<Interval>): number => intervals.reduce((sum, one) => sum + lengthOf(one), 0)

/** Refuses shards that begin or end inside a byte. */
const checkBytes = (tensor: PlacedTensor, dim: number, cut: Cut): Result.Result<Cut, LayoutError> => {
  const { name, dtype, shape } = tensor
  if (!isSubByte(dtype) || (cut.intervals.length === 1 && lengthOf(cut.intervals[0]!) === shape[dim]))
    return Result.succeed(cut)
  const inner = elementCount(shape.slice(dim + 1)) * bitsOf(dtype)
  const isWhole = (length: number): boolean => (length * inner) % 8 === 0
  const rows = elementCount(shape.slice(0, dim))
  if (cut.intervals.every(([from, to]) => isWhole(from) && isWhole(to)) && (rows === 1 || isWhole(shape[dim]!))) {
    return Result.succeed(cut)
  }
  return layoutError(
    "CutInsideByte",
    [name],
    `A shard along dimension ${dim} of ${dtype}${formatShape(shape)} begins or ends inside a byte.`,
    "Replicate it, or choose a degree that cuts whole bytes."
  )
}

/** Undefined for experts that other ranks hold. */
export const holdingOf = (
  tensor: PlacedTensor,
  config: ParallelConfig,
  place: RankPlace
): Result.Result<Holding | undefined, LayoutError> => {
  const { experts, dim, name, shape, rule } = tensor
  const held =
    experts === undefined
      ? undefined
      : (experts.held?.[place.expertEp] ?? [chunkInterval(experts.count, expertDegrees(config).ep, place.expertEp)])
  if (held !== undefined && total(held) === 0) return Result.succeed(undefined)
  if (experts?._tag === "Named" && !held!.some(([from, to]) => experts.number >= from && experts.number < to)) {
    return Result.succeed(undefined)
  }
  const position = experts === undefined ? place.tp : place.expertTp
  const degree = experts === undefined ? config.tp : expertDegrees(config).etp
  const fused = experts?._tag === "Fused" ? held : undefined
  if (dim === undefined) return Result.succeed({ tensor, degree, cut: undefined, experts: fused })
  return cutDimension(name, shape[dim]!, rule, position, degree).pipe(
    Result.flatMap((cut) => checkBytes(tensor, dim, cut)),
    Result.map((cut) => ({ tensor, degree, cut, experts: fused }))
  )
}

const expertDim = (tensor: PlacedTensor): number | undefined =>
  tensor.experts?._tag === "Fused" ? tensor.experts.dim : undefined

/** The part of a tensor that one rank holds, from the shares that fall to it. */
export const localTensor = (
  { tensor, cut, experts }: Holding,
  aliasOf: string | undefined,
  isPrimary: boolean
): LocalTensor => {
  const atExperts = expertDim(tensor)
  const localExperts: Interval | undefined = experts === undefined ? undefined : [0, total(experts)]
  const shape = tensor.shape.map((length, dim) =>
    dim === tensor.dim && cut !== undefined
      ? cut.length
      : dim === atExperts && localExperts !== undefined
        ? localExperts[1]
        : length
  )
  const regionOf = (whole: Shape, rows: Interval | undefined, ours: Interval | undefined): Region =>
    fullRegion(whole).map((interval, dim) =>
      dim === tensor.dim && rows !== undefined ? rows : dim === atExperts && ours !== undefined ? ours : interval
    )
  /** Each interval with its place in the local tensor, where they follow each other. */
  const placed = (intervals: ReadonlyArray<Interval> | undefined) => {
    let start = 0
    return (intervals ?? [undefined]).map((global) => {
      if (global === undefined) return { global, local: undefined }
      start += lengthOf(global)
      return { global, local: [start - lengthOf(global), start] as const }
    })
  }
  const pieces = placed(experts).flatMap((ours) =>
    placed(cut?.intervals).map(
      (rows): Piece => ({
        local: regionOf(shape, rows.local, ours.local),
        global: regionOf(tensor.shape, rows.global, ours.global)
      })
    )
  )
  const isPadded = cut !== undefined && cut.length > heldRows(cut)
  return {
    name: tensor.name,
    dtype: tensor.dtype,
    shape,
    pieces: pieces.filter((piece) => !isEmptyRegion(piece.local)),
    padding: isPadded ? regionOf(shape, [heldRows(cut), cut.length], localExperts) : undefined,
    storedAs: tensor.aliasOf ?? tensor.name,
    aliasOf,
    isPrimary
  }
}

/** How planning gets the cut: the plain forms where all shards are equal, explicit intervals otherwise. */
const describeCut = ({
  tensor,
  degree,
  cut
}: Holding): Pick<ParameterMetadata, "isTp" | "partitionDim" | "partitionSizes" | "partitionOffsets"> => {
  const { dim, rule, shape, name } = tensor
  const whole = { isTp: false, partitionDim: dim ?? 0, partitionSizes: null, partitionOffsets: null }
  if (dim === undefined || cut === undefined || degree === 1) return whole
  if ("cuts" in rule) {
    if (rule.sizes === undefined) return { ...whole, isTp: true, partitionOffsets: cut.intervals }
    return rule.sizes.length === 1 ? { ...whole, isTp: true } : { ...whole, isTp: true, partitionSizes: rule.sizes }
  }
  const length = shape[dim]!
  const blocks =
    rule.blocks === undefined ? [length] : Result.getOrElse(blockLengths(name, length, rule.blocks), () => [length])
  const isEven =
    rule.padToMultiple === undefined &&
    // Heads are cut whole: an even length is not enough.
    (rule.heads === undefined || rule.heads.count % degree === 0 || rule.heads.whenFewer === "rows") &&
    blocks.every((block) => block % degree === 0) &&
    heldRows(cut) * degree === length
  if (!isEven) return { ...whole, isTp: true, partitionOffsets: cut.intervals }
  return rule.blocks === undefined
    ? { ...whole, isTp: true }
    : { ...whole, isTp: true, partitionSizes: blocks.map((block) => block / degree) }
}

/** The planned views of a local tensor: all of it, or one per expert of a fused tensor. */
export const localParameters = (holding: Holding, local: LocalTensor): ReadonlyArray<LocalParameter> => {
  const { tensor, cut, experts } = holding
  const described = describeCut(holding)
  const atExperts = expertDim(tensor)
  const make = (name: string, number: number | null, at: Interval | undefined): LocalParameter => {
    const view = fullRegion(local.shape).map((interval, dim): Interval => {
      if (dim === tensor.dim && cut !== undefined) return [0, heldRows(cut)]
      return dim === atExperts && at !== undefined ? at : interval
    })
    return {
      tensor: local.name,
      view,
      groups: tensor.experts === undefined ? "dense" : "expert",
      metadata: parameterMetadata({
        name,
        shape: view.map(lengthOf),
        dtype: tensor.dtype,
        ownerRank: 0,
        ...described,
        // Experts that are placed one by one need no partner at the same position: their names are global.
        isEp: number !== null && tensor.experts?.held === undefined,
        numExperts: tensor.experts?.count ?? null,
        globalExpertIndex: number,
        aliasOf: local.aliasOf ?? null
      })
    }
  }
  if (tensor.experts === undefined) return [make(tensor.name, null, undefined)]
  if (tensor.experts._tag === "Named") return [make(tensor.name, tensor.experts.number, undefined)]
  const numbers = experts!.flatMap(([first, end]) => Array.from({ length: end - first }, (_, at) => first + at))
  return numbers.map((number, at) => make(`${tensor.name}[${number}]`, number, [at, at + 1]))
}
