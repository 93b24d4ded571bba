// SPDX-License-Identifier: Apache-2.0
/**
 * Carries out the mesh plans of all ranks on plain arrays: contributions, reductions in the plan's order, casts, buckets
 * packed by the sender and unpacked by the receiver, each by its own plan. Destinations are poisoned first, and every write
 * is counted.
 *
 * Invariant: touches elements one by one and shares no code with the planners or with execution.
 */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Region, Shape } from "@tensorferry/core/base/Region"
import type { Chunk } from "@tensorferry/core/ir/Chunk"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import type { MeshLayout } from "@tensorferry/core/layout/Placement"
import { type ElementValue, elementCodec } from "../values/casts.ts"
import { reduction } from "../values/reductions.ts"

/** A rank's shard of one tensor, dense. */
export interface MeshArray {
  readonly dtype: DType
  readonly shape: Shape
  readonly bytes: Uint8Array
}

/** What came of carrying out the plans of all ranks. */
export interface MeshOutcome {
  /** Per rank, a target shard per tensor of the plan; null where the rank is not in the target. */
  readonly targets: ReadonlyMap<Rank, ReadonlyArray<MeshArray | null>>
  /** What went wrong on the way; empty where nothing did. */
  readonly faults: ReadonlyArray<string>
  /** Payload bytes between different ranks, and the part of them that contributes to reductions. */
  readonly wireBytes: number
  readonly contributedBytes: number
}

/** What destinations hold before anything is written. */
export const poisonByte = 0xa5

const count = (shape: Shape): number => shape.reduce((product, length) => product * length, 1)
const sizeOf = (dtype: DType): number => bitsOf(dtype) / 8

/** Row-major positions of a box in an array. */
const positionsOf = (shape: Shape, box: Region): ReadonlyArray<number> => {
  let positions = [0]
  for (const [dim, [start, stop]] of box.entries()) {
    positions = positions.flatMap((base) =>
      Array.from({ length: stop - start }, (_, at) => base * shape[dim]! + start + at)
    )
  }
  return positions
}

/** A dense array of these values in row-major order, each converted to the type. */
export const arrayOf = (dtype: DType, shape: Shape, values: ReadonlyArray<ElementValue>): MeshArray => {
  const bytes = new Uint8Array(values.length * sizeOf(dtype))
  const view = new DataView(bytes.buffer)
  for (const [at, value] of values.entries()) elementCodec(dtype)!.write(view, at * sizeOf(dtype), value)
  return { dtype, shape, bytes }
}

/** The elements in row-major order. */
export const valuesOf = ({ dtype, bytes }: MeshArray): ReadonlyArray<ElementValue> => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  return Array.from({ length: bytes.length / sizeOf(dtype) }, (_, at) =>
    elementCodec(dtype)!.read(view, at * sizeOf(dtype))
  )
}

const convert = (bytes: Uint8Array, from: DType, to: DType): Uint8Array =>
  from === to ? bytes : arrayOf(to, [], valuesOf({ dtype: from, shape: [], bytes })).bytes

const read = (array: MeshArray, box: Region): Uint8Array => {
  const size = sizeOf(array.dtype)
  const positions = positionsOf(array.shape, box)
  const out = new Uint8Array(positions.length * size)
  for (const [at, position] of positions.entries()) {
    out.set(array.bytes.subarray(position * size, (position + 1) * size), at * size)
  }
  return out
}

const placeName = (chunk: Chunk): string => `${chunk.tensor}:${JSON.stringify(chunk.srcSliceTuples)}`

/** Runs the plans of all ranks. `sourceOf` gives a rank's shard of a tensor, by its index. */
export const runMeshPlans = (
  plans: ReadonlyArray<MeshPlan>,
  sourceOf: (rank: Rank, tensor: number) => MeshArray
): MeshOutcome => {
  const faults: Array<string> = []
  let [wireBytes, contributedBytes] = [0, 0]
  const sources = new Map<string, MeshArray>()
  const source = (rank: Rank, tensor: number): MeshArray => {
    const known = sources.get(`${rank}/${tensor}`) ?? sourceOf(rank, tensor)
    sources.set(`${rank}/${tensor}`, known)
    return known
  }
  const targets = new Map(
    plans.map((plan) => [
      plan.rank,
      plan.tensors.map(({ targetDtype, targetShape }) =>
        targetShape === null
          ? null
          : {
              dtype: targetDtype,
              shape: targetShape,
              bytes: new Uint8Array(count(targetShape) * sizeOf(targetDtype)).fill(poisonByte)
            }
      )
    ])
  )
  const writes = new Map(
    [...targets].map(([rank, arrays]) => [
      rank,
      arrays.map((array) => new Uint8Array(array === null ? 0 : count(array.shape)))
    ])
  )
  /** Per reducing rank and box, the parts by contributing rank. */
  const parts = new Map<string, Map<Rank, Uint8Array>>()

  /** What a rank ships for a chunk, in the chunk's type. */
  const payload = (rank: Rank, chunk: Chunk): Uint8Array => {
    const array = source(rank, chunk.tensor)
    const own = read(array, chunk.srcSliceTuples)
    const [group] = chunk.sourcePartialGroups
    if (chunk.kind === "none" || group === undefined) return convert(own, array.dtype, chunk.transferDtype)
    const got = parts.get(`${rank}/${placeName(chunk)}`)
    const operands = group.ranks.flatMap((member) => {
      const part = member === rank ? own : got?.get(member)
      if (part === undefined) faults.push(`rank ${rank} reduces ${placeName(chunk)} without the part of rank ${member}`)
      return part === undefined ? [] : [valuesOf({ dtype: array.dtype, shape: [], bytes: part })]
    })
    const combine = reduction(array.dtype, group.op)!
    const reduced = operands[0]!.map((_, at) => combine(operands.map((values) => values[at]!)))
    return convert(arrayOf(array.dtype, [], reduced).bytes, array.dtype, chunk.transferDtype)
  }
  const write = (rank: Rank, chunk: Chunk, bytes: Uint8Array): void => {
    const array = targets.get(rank)?.[chunk.tensor]
    if (array === null || array === undefined || chunk.sliceTuples === null) {
      faults.push(`rank ${rank} has no place for ${placeName(chunk)}`)
      return
    }
    const size = sizeOf(array.dtype)
    const converted = convert(bytes, chunk.transferDtype, array.dtype)
    for (const [at, position] of positionsOf(array.shape, chunk.sliceTuples).entries()) {
      array.bytes.set(converted.subarray(at * size, (at + 1) * size), position * size)
      writes.get(rank)![chunk.tensor]![position]! += 1
    }
  }
  const receive = (rank: Rank, chunk: Chunk, bytes: Uint8Array): void => {
    if (chunk.kind !== "none") write(rank, chunk, bytes)
    else {
      const name = `${rank}/${placeName(chunk)}`
      const known = parts.get(name) ?? new Map<Rank, Uint8Array>()
      if (known.has(chunk.srcIdx.rank)) faults.push(`rank ${chunk.srcIdx.rank} contributes twice to ${name}`)
      parts.set(name, known.set(chunk.srcIdx.rank, bytes))
    }
  }
  for (const isReduction of [true, false]) {
    const wire = new Map<string, Uint8Array>()
    const chosen = plans.map((plan) => ({
      rank: plan.rank,
      buckets: plan.buckets.filter(({ entries }) => (entries[0]!.chunk.kind === "none") === isReduction)
    }))
    for (const { rank, buckets } of chosen) {
      for (const { key, entries, totalBytes } of buckets) {
        const { srcIdx, dstIdx } = entries[0]!.chunk
        if (srcIdx.rank !== rank) continue
        const buffer = new Uint8Array(totalBytes).fill(poisonByte)
        for (const { chunk, offset } of entries) buffer.set(payload(rank, chunk), offset)
        for (const dst of dstIdx) wire.set(`${key} to ${dst.rank}`, buffer)
      }
    }
    for (const { rank, buckets } of chosen) {
      for (const { key, entries, totalBytes } of buckets) {
        if (entries[0]!.chunk.srcIdx.rank === rank) continue
        const buffer = wire.get(`${key} to ${rank}`)
        if (buffer?.length !== totalBytes) {
          faults.push(`rank ${rank} waits for ${key} of ${totalBytes} bytes and gets ${buffer?.length ?? "nothing"}`)
          continue
        }
        wire.delete(`${key} to ${rank}`)
        for (const { chunk, offset, nbytes } of entries) {
          wireBytes += nbytes
          if (isReduction) contributedBytes += nbytes
          receive(rank, chunk, buffer.subarray(offset, offset + nbytes))
        }
      }
    }
    for (const key of wire.keys()) faults.push(`nobody receives ${key}`)
    // A rank that keeps what it reduces has all parts only now.
    if (isReduction) {
      for (const plan of plans) {
        for (const chunk of plan.localChunks) write(plan.rank, chunk, payload(plan.rank, chunk))
      }
    }
  }
  for (const [rank, arrays] of writes) {
    for (const [tensor, counts] of arrays.entries()) {
      const at = counts.findIndex((times) => times !== 1)
      if (at >= 0) faults.push(`rank ${rank}, tensor ${tensor}: element ${at} is written ${counts[at]} times`)
    }
  }
  return { targets, faults, wireBytes, contributedBytes }
}

/**
 * Global indices that a rank holds along each tensor dimension, found by cutting lists of indices as the placements say.
 * The layout's dimensions count from the first.
 */
export const heldByRank = (layout: MeshLayout, shape: Shape, rank: Rank): ReadonlyArray<ReadonlyArray<number>> => {
  const { mesh, placements } = layout
  let rest = mesh.ranks.indexOf(rank)
  const coordinate = [...mesh.shape]
    .reverse()
    .map((length) => {
      const at = rest % length
      rest = Math.floor(rest / length)
      return at
    })
    .reverse()
  const held = shape.map((length) => Array.from({ length }, (_, index) => index))
  const chunk = (list: ReadonlyArray<number>, parts: number, at: number): ReadonlyArray<number> => {
    const size = Math.ceil(list.length / parts)
    return list.slice(at * size, (at + 1) * size)
  }
  for (const [meshDim, placement] of placements.entries()) {
    const [parts, at] = [mesh.shape[meshDim]!, coordinate[meshDim]!]
    if (placement._tag === "Shard") held[placement.dim] = [...chunk(held[placement.dim]!, parts, at)]
    if (placement._tag === "StridedShard") {
      const list = held[placement.dim]!
      held[placement.dim] = Array.from({ length: Math.min(placement.splitFactor, list.length) }, (_, outer) =>
        chunk(chunk(list, placement.splitFactor, outer), parts, at)
      ).flat()
    }
  }
  return held
}

/** Row-major numbers, in the whole tensor, of the elements that a rank holds, in local order. */
export const heldElements = (layout: MeshLayout, shape: Shape, rank: Rank): ReadonlyArray<number> => {
  let numbers: ReadonlyArray<number> = [0]
  for (const [dim, indices] of heldByRank(layout, shape, rank).entries()) {
    numbers = numbers.flatMap((base) => indices.map((index) => base * shape[dim]! + index))
  }
  return numbers
}
