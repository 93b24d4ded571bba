// SPDX-License-Identifier: Apache-2.0
/** Whole tensors, their shards by a layout, and what a transfer must leave: for tests of agents. */
import type { DType } from "@tensorferry/core/base/DType"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { coordinateAt, deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import { type MeshLayout, meshLayout, type Placement } from "@tensorferry/core/layout/Placement"
import { localShard } from "@tensorferry/core/layout/ShardIntervals"
import type { HostMemoryShape } from "@tensorferry/core/service/HostMemory"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

export interface SideLayout {
  readonly mesh: ReadonlyArray<number>
  readonly placements: ReadonlyArray<Placement>
}

export const layoutOf = ({ mesh, placements }: SideLayout): MeshLayout =>
  Result.getOrThrow(meshLayout(Result.getOrThrow(deviceMesh({ shape: mesh })), placements))

export const ranksOf = ({ mesh }: SideLayout): number => mesh.reduce((product, length) => product * length, 1)

/** Small whole numbers, which all types in use hold exactly. */
const valueAt = (index: ReadonlyArray<number>, round: number): number =>
  1 + ((index.reduce((sum, at, dim) => sum + at * (3 + 2 * dim), 0) + 5 * round) % 7)

/** Global indices of a shard's elements, row-major. */
const indicesOf = (layout: MeshLayout, shape: ReadonlyArray<number>, rank: number) => {
  const { intervals, shape: local } = Result.getOrThrow(localShard(layout, shape, rank))
  const along = intervals.map((held) =>
    held.flatMap(([start, stop]) => Array.from({ length: stop - start }, (_, at) => start + at))
  )
  let all: ReadonlyArray<ReadonlyArray<number>> = [[]]
  for (const positions of along) all = all.flatMap((index) => positions.map((at) => [...index, at]))
  return { local, all }
}

const partialFactor = (layout: MeshLayout, rank: number): number =>
  layout.placements.reduce(
    (factor, placement, dim) =>
      placement._tag === "Partial" ? factor * (1 + coordinateAt(layout.mesh, rank)[dim]!) : factor,
    1
  )

const partialSum = (layout: MeshLayout): number =>
  layout.placements.reduce((sum, placement, dim) => {
    const size = layout.mesh.shape[dim]!
    return placement._tag === "Partial" ? (sum * size * (size + 1)) / 2 : sum
  }, 1)

/** What a rank of the source holds: its shard, or its share of the sum. */
export const sourceValues = (side: SideLayout, shape: ReadonlyArray<number>, rank: number, round: number) => {
  const layout = layoutOf(side)
  const { local, all } = indicesOf(layout, shape, rank)
  const factor = partialFactor(layout, rank)
  return { local, values: all.map((index) => valueAt(index, round) * factor) }
}

/** What a rank of the target holds afterwards. */
export const targetValues = (
  source: SideLayout,
  target: SideLayout,
  shape: ReadonlyArray<number>,
  rank: number,
  round: number
) => {
  const { local, all } = indicesOf(layoutOf(target), shape, rank)
  const factor = partialSum(layoutOf(source))
  return { local, values: all.map((index) => valueAt(index, round) * factor) }
}

export const encode = (dtype: DType, values: ReadonlyArray<number>): Uint8Array => {
  switch (dtype) {
    case "float32":
      return new Uint8Array(Float32Array.from(values).buffer)
    case "float64":
      return new Uint8Array(Float64Array.from(values).buffer)
    case "int32":
      return new Uint8Array(Int32Array.from(values).buffer)
    case "bfloat16": {
      const wide = new Uint32Array(Float32Array.from(values).buffer)
      return new Uint8Array(Uint16Array.from(wide, (bits) => bits >>> 16).buffer)
    }
    default:
      return Uint8Array.from(values)
  }
}

/** A dense tensor in shared memory, poisoned. */
export const makeTensor = Effect.fnUntraced(function* (
  memory: HostMemoryShape,
  dtype: DType,
  shape: ReadonlyArray<number>
) {
  const count = shape.reduce((product, length) => product * length, 1)
  const storage = yield* memory.allocate(byteLengthOf(dtype, count))
  storage.bytes!.fill(0xa5)
  return Result.getOrThrow(tensorView(storage, dtype, shape))
})

export const fill = (tensor: Tensor, values: ReadonlyArray<number>): void =>
  tensor.storage.bytes!.set(encode(tensor.dtype, values))

/** Empty where the tensor holds exactly these values. */
export const faultOf = (tensor: Tensor, values: ReadonlyArray<number>): string | undefined => {
  const wanted = encode(tensor.dtype, values)
  const wrong = wanted.findIndex((byte, at) => tensor.storage.bytes![at] !== byte)
  return wrong < 0 ? undefined : `byte ${wrong} is ${tensor.storage.bytes![wrong]}, not ${wanted[wrong]}`
}
