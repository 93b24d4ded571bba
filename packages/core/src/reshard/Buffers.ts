// SPDX-License-Identifier: Apache-2.0
/**
 * Dense memory of one update: what is cast, kept or reduced on the way.
 *
 * Invariant: what waits in a wave's buffers has the memory of the wave before the last one, so never more than two waves are
 * in memory at once.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { rowMajorStrides, type Shape } from "../base/Region.ts"
import { packParts, partByteLength } from "../planner/Bucketing.ts"
import type { TensorEngineShape, TensorError } from "../service/TensorEngine.ts"
import { type Device, formatDevice } from "../tensor/Device.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"

/** A failed engine as the error of an update: adds the rank and the operation. */
export const engineFailed = (rank: Rank, op: string, error: TensorError): ReshardError =>
  reshardError("WritebackFailed", { ...error.reason, rank, op, detail: error.message })

/** What memory is wanted for. */
export type Wanted = Pick<Tensor, "dtype" | "shape" | "device">

/** Memory of all waves of one update, and its bytes. */
export interface Buffers {
  /** By wave, in the order of the request. */
  readonly waves: ReadonlyArray<ReadonlyArray<Tensor>>
  readonly byteLength: number
}

const denseIn = (buffer: Tensor, dtype: DType, shape: Shape, offset: number): Tensor => ({
  ...buffer,
  dtype,
  shape,
  strides: rowMajorStrides(shape),
  byteOffset: buffer.byteOffset + offset
})

/** Memory for every wave: two allocations per device, which waves use by turns. */
export const allocateWaves = (
  rank: Rank,
  engine: TensorEngineShape,
  waves: ReadonlyArray<ReadonlyArray<Wanted>>
): Effect.Effect<Buffers, ReshardError, Scope.Scope> =>
  Effect.gen(function* () {
    const sizes = new Map<string, { readonly device: Device; byteLength: number }>()
    const placed = waves.map((wanted, wave) =>
      [...Map.groupBy(wanted.entries(), ([, { device }]) => formatDevice(device))].flatMap(([name, group]) => {
        const lengths = group.map(([, part]) => partByteLength(part))
        const [packed] = packParts(lengths, Number.MAX_SAFE_INTEGER)
        const key = `${name} ${wave % 2}`
        const size = sizes.get(key) ?? { device: group[0]![1].device, byteLength: 0 }
        size.byteLength = Math.max(size.byteLength, packed!.byteLength)
        sizes.set(key, size)
        return packed!.parts.map(({ index, byteOffset }) => ({ at: group[index]![0], key, byteOffset }))
      })
    )
    const memory = new Map<string, Tensor>()
    for (const [key, { device, byteLength }] of sizes) {
      const allocated = engine.allocate("uint8", [byteLength], device)
      memory.set(key, yield* Effect.mapError(allocated, (error) => engineFailed(rank, "allocate", error)))
    }
    return {
      waves: placed.map((parts, wave) => {
        const tensors = new Array<Tensor>(parts.length)
        for (const { at, key, byteOffset } of parts) {
          const { dtype, shape } = waves[wave]![at]!
          tensors[at] = denseIn(memory.get(key)!, dtype, shape, byteOffset)
        }
        return tensors
      }),
      byteLength: [...sizes.values()].reduce((sum, { byteLength }) => sum + byteLength, 0)
    }
  })

/** Memory that lasts as long as the update. */
export const allocateDense = (
  rank: Rank,
  engine: TensorEngineShape,
  wanted: ReadonlyArray<Wanted>
): Effect.Effect<{ readonly tensors: ReadonlyArray<Tensor>; readonly byteLength: number }, ReshardError, Scope.Scope> =>
  Effect.map(allocateWaves(rank, engine, [wanted]), ({ waves, byteLength }) => ({ tensors: waves[0]!, byteLength }))
