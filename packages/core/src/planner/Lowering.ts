// SPDX-License-Identifier: Apache-2.0
/**
 * One rank's plan for a list of tensors: chunks and buckets. Pure; every rank lowers alone, and both ends of a bucket make
 * the equal one.
 *
 * Cost: this rank's own chunks; tensors of one shape share their boxes, and shapes of one pattern the choice of sources.
 */
import * as Result from "effect/Result"
import type { Digest } from "../base/Digest.ts"
import { bitsOf, byteLengthOf, type DType, isCastable, isSubByte, kindOf, wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, formatShape, isRepresentable, type Shape } from "../base/Region.ts"
import type { Bucket } from "../ir/Bucket.ts"
import type { Chunk } from "../ir/Chunk.ts"
import type { M2MMap } from "../ir/M2MMap.ts"
import { type MeshPlan, type MeshTensor, sharedDigestOf } from "../ir/MeshPlan.ts"
import { formatMeshLayout } from "../layout/MeshText.ts"
import { isCountable } from "../layout/ShardIntervals.ts"
import { cpu, type Device, formatDevice } from "../tensor/Device.ts"
import { packParts } from "./Bucketing.ts"
import { type ChunkShape, chunkShapesOf } from "./ChunkShapes.ts"
import { indexMap, type MeshIndex, type MeshSide, shardIndices } from "./MeshIndex.ts"
import { type PlanError, planError } from "./PlanError.ts"
import { type ShipmentsOf, shipmentRule } from "./SourceShares.ts"

/** A tensor and the map that it goes by. */
export interface MeshTensorSpec {
  readonly name: string
  /** Of the whole tensor. */
  readonly shape: Shape
  readonly sourceDtype: DType
  readonly targetDtype: DType
  readonly map: M2MMap
}

/** How large buckets get, and where their buffers are. */
export interface LowerOptions {
  /** Most bytes of a bucket with more than one chunk; all ranks state the same. 32 MiB by default. */
  readonly bucketBytes?: number
  /** Where this rank's buffers are; host memory by default. */
  readonly device?: Device
}

const defaultBucketBytes = 32 * 1024 * 1024

interface IndexedMap {
  readonly index: MeshIndex
  readonly shipmentsOf: ShipmentsOf
}

/** Tensors that have been checked, with what plans of any rank share. */
export interface LoweringIndex {
  readonly tensors: ReadonlyArray<MeshTensorSpec>
  readonly maps: ReadonlyArray<IndexedMap>
  /** Index into `maps` of each tensor. */
  readonly mapOf: ReadonlyArray<number>
  readonly bucketBytes: number
  /** Ranks from 0 to the largest that any map names. */
  readonly worldSize: number
  readonly sharedDigest: Digest
}

const ranksOf = (map: M2MMap): ReadonlyArray<Rank> => [...map.source.mesh.ranks, ...map.target.mesh.ranks]

/** A boundary inside a byte, along the innermost dimension that is cut at all; outer ones then lie at whole bytes. */
const cutsInsideByte = ({ index }: IndexedMap, shape: Shape, dtype: DType): boolean => {
  if (!isSubByte(dtype)) return false
  const dims = index.gridsOf(shape)
  let bits = bitsOf(dtype)
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    const runs = dims[dim]!.bySource.flatMap((partners) => partners.flatMap((overlap) => overlap.runs))
    if (runs.length > 1 || runs.some((run) => run.cells > 1)) {
      return runs.some((run) =>
        [run.sourceStart, run.targetStart, run.length / run.cells].some((length) => (length * bits) % 8 !== 0)
      )
    }
    bits *= shape[dim]!
  }
  return false
}

const checkTensor = (spec: MeshTensorSpec, indexed: IndexedMap): PlanError | undefined => {
  const { name, shape, sourceDtype, targetDtype, map } = spec
  const refuse = (kind: Parameters<typeof planError>[0], detail: string, remedy: string) =>
    planError(kind, name, [], detail, remedy)
  if (!isRepresentable(shape, Math.max(bitsOf(sourceDtype), bitsOf(targetDtype)))) {
    return refuse("InvalidMetadata", `Shape ${formatShape(shape)} exceeds 2^53 bits.`, "Split the tensor.")
  }
  const least = map.tensorRank ?? map.cellCounts.length
  const hasShards =
    map.cellCounts.length > 1 || indexed.index.source.splits[0]!.length + indexed.index.target.splits[0]!.length > 0
  if (map.tensorRank === null ? hasShards && shape.length < least : shape.length !== least) {
    return refuse(
      "InvalidMetadata",
      `Shape ${formatShape(shape)} does not have the ${least} dimensions of ${formatMeshLayout(map.source)} to ${formatMeshLayout(map.target)}.`,
      "Use placements that fit the tensor."
    )
  }
  const uncountable = shape.findIndex((length, dim) =>
    [indexed.index.source, indexed.index.target].some((side) => !isCountable(length, side.splits[dim] ?? []))
  )
  if (uncountable >= 0) {
    return refuse(
      "InvalidMetadata",
      `Dimension ${uncountable} of ${formatShape(shape)} falls into too many intervals per rank.`,
      "Use smaller split factors."
    )
  }
  if (!isCastable(sourceDtype, targetDtype)) {
    return refuse("DTypeMismatch", `${sourceDtype} cannot be cast to ${targetDtype}.`, "Use types that can be cast.")
  }
  const [reduction] = map.sourcePartialReductions
  const kind = kindOf(sourceDtype)
  if (reduction !== undefined && (kind === "opaque" || (kind === "bool" && reduction[1] === "avg"))) {
    return refuse(
      "DTypeMismatch",
      `Contributions of ${sourceDtype} have no ${reduction[1]}.`,
      "Reduce in another element type."
    )
  }
  if (cutsInsideByte(indexed, shape, sourceDtype)) {
    return refuse(
      "CutInsideByte",
      `${sourceDtype}${formatShape(shape)} would be cut inside a byte.`,
      "Shard a dimension whose pieces are whole bytes."
    )
  }
  return undefined
}

/** Checks the tensors and gathers what all ranks' plans share. Equal on all ranks, as is every error. */
export const indexLowering = (
  tensors: ReadonlyArray<MeshTensorSpec>,
  options: Pick<LowerOptions, "bucketBytes"> = {}
): Result.Result<LoweringIndex, PlanError> => {
  const bucketBytes = options.bucketBytes ?? defaultBucketBytes
  if (!Number.isSafeInteger(bucketBytes) || bucketBytes < 1) {
    return Result.fail(
      planError(
        "InvalidMetadata",
        "",
        [],
        `Buckets cannot have ${bucketBytes} bytes.`,
        "State a positive whole number."
      )
    )
  }
  const maps: Array<IndexedMap> = []
  const known = new Map<M2MMap, number>()
  const names = new Set<string>()
  const mapOf: Array<number> = []
  for (const spec of tensors) {
    if (names.has(spec.name)) {
      return Result.fail(
        planError("DuplicateName", spec.name, [], "Two tensors have one name.", "Give every tensor a name of its own.")
      )
    }
    names.add(spec.name)
    let at = known.get(spec.map)
    if (at === undefined) {
      at = maps.length
      const index = indexMap(spec.map)
      maps.push({ index, shipmentsOf: shipmentRule(index) })
      known.set(spec.map, at)
    }
    const fault = checkTensor(spec, maps[at]!)
    if (fault !== undefined) return Result.fail(fault)
    mapOf.push(at)
  }
  const worldSize = 1 + maps.reduce((most, { index }) => ranksOf(index.map).reduce((a, b) => Math.max(a, b), most), -1)
  const sharedDigest = sharedDigestOf(
    bucketBytes,
    maps.map(({ index }) => index.map),
    tensors.map((tensor, at) => ({ ...tensor, map: mapOf[at]! }))
  )
  return Result.succeed({ tensors, maps, mapOf, bucketBytes, worldSize, sharedDigest })
}

const localShape = (
  side: MeshSide,
  lengths: "sourceLengths" | "targetLengths",
  index: MeshIndex,
  shape: Shape,
  rank: Rank
) => {
  const position = side.positionOf.get(rank)
  if (position === undefined) return null
  const shard = shardIndices(side, position, shape.length)
  return index.gridsOf(shape).map((grid, dim) => grid[lengths][shard[dim]!]!)
}

interface SortedBucket {
  readonly bucket: Bucket
  readonly isReduction: boolean
  readonly ordinal: number
  readonly shift: number
  readonly source: Rank
}

/**
 * Reductions first. Then every rank's first bucket to each peer before any second one, and peers at equal distance at once,
 * so that no rank is everybody's next receiver.
 */
const inSharedOrder = (a: SortedBucket, b: SortedBucket): number =>
  Number(b.isReduction) - Number(a.isReduction) ||
  a.ordinal - b.ordinal ||
  a.shift - b.shift ||
  a.source - b.source ||
  (a.bucket.key < b.bucket.key ? -1 : a.bucket.key > b.bucket.key ? 1 : 0)

/** The plan of one rank; empty for a rank in none of the meshes. */
export const lowerRank = (
  lowering: LoweringIndex,
  rank: Rank,
  options: Pick<LowerOptions, "device"> = {}
): MeshPlan => {
  const { tensors, maps, mapOf, bucketBytes, worldSize } = lowering
  const shapes = maps.map(() => new Map<string, ReadonlyArray<ChunkShape>>())
  const localChunks: Array<Chunk> = []
  const byKey = new Map<string, Array<Chunk>>()
  const described: Array<MeshTensor> = []
  for (const [at, { name, shape, sourceDtype, targetDtype }] of tensors.entries()) {
    const map = mapOf[at]!
    const { index, shipmentsOf } = maps[map]!
    const shapeKey = shape.join()
    let boxes = shapes[map]!.get(shapeKey)
    if (boxes === undefined) {
      boxes = chunkShapesOf(index, shipmentsOf, shape, rank)
      shapes[map]!.set(shapeKey, boxes)
    }
    const wire = wireDType(sourceDtype, targetDtype)
    for (const box of boxes) {
      const chunk: Chunk = {
        kind: box.kind,
        tensor: at,
        chunkShape: box.chunkShape,
        srcIdx: box.srcIdx,
        dstIdx: box.dstIdx,
        sliceTuples: box.sliceTuples,
        srcSliceTuples: box.srcSliceTuples,
        sourcePartialGroups: box.sourcePartialGroups,
        transferDtype: box.kind === "none" ? sourceDtype : wire,
        bucketKey: box.bucketKey
      }
      if (chunk.kind === "local") localChunks.push(chunk)
      else {
        const list = byKey.get(chunk.bucketKey)
        if (list === undefined) byKey.set(chunk.bucketKey, [chunk])
        else list.push(chunk)
      }
    }
    described.push({
      name,
      shape,
      sourceDtype,
      targetDtype,
      map,
      sourceShape: localShape(index.source, "sourceLengths", index, shape, rank),
      targetShape: localShape(index.target, "targetLengths", index, shape, rank)
    })
  }
  const device = formatDevice(options.device ?? cpu)
  const sorted: Array<SortedBucket> = []
  for (const [key, chunks] of byKey) {
    const [first] = chunks
    const source = first!.srcIdx.rank
    const shift = (first!.dstIdx[0]!.rank - source + worldSize) % worldSize
    const lengths = chunks.map((chunk) => byteLengthOf(chunk.transferDtype, elementCount(chunk.chunkShape)))
    for (const [ordinal, message] of packParts(lengths, bucketBytes).entries()) {
      const entries = message.parts.map(({ index, byteOffset }) => ({
        chunk: chunks[index]!,
        offset: byteOffset,
        nbytes: lengths[index]!
      }))
      const bucket: Bucket = { key: `${key} #${ordinal}`, device, entries, totalBytes: message.byteLength }
      sorted.push({ bucket, isReduction: first!.kind === "none", ordinal, shift, source })
    }
  }
  return {
    format: "tensorferry.mesh-plan",
    version: 1,
    rank,
    maps: maps.map(({ index }) => index.map),
    tensors: described,
    bucketBytes,
    localChunks,
    buckets: sorted.sort(inSharedOrder).map(({ bucket }) => bucket),
    sharedDigest: lowering.sharedDigest
  }
}
