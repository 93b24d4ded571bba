// SPDX-License-Identifier: Apache-2.0
/**
 * Buffers that parcels travel in, and other memory of one update.
 *
 * Invariant: never more than `limit` bytes are allocated at once. Whoever takes buffers knows the limit from the schedule,
 * so a request beyond it is a fault and is refused, not queued.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { rowMajorStrides, type Shape } from "../base/Region.ts"
import { packParts, partByteLength } from "../planner/Bucketing.ts"
import { type ReshardError, reshardError } from "../reshard/ReshardError.ts"
import { engineFailed } from "../reshard/Writeback.ts"
import type { TensorEngineShape } from "../service/TensorEngine.ts"
import { type Device, formatDevice } from "../tensor/Device.ts"
import type { Tensor } from "../tensor/Tensor.ts"

export interface BufferPool {
  readonly limit: number
  /** Dense bytes with unspecified contents. */
  readonly take: (byteLength: number, device: Device) => Effect.Effect<Tensor, ReshardError>
  readonly giveBack: (buffer: Tensor) => Effect.Effect<void>
  /** Most bytes that were allocated at once. */
  readonly peakBytes: () => number
}

interface Idle {
  readonly buffer: Tensor
  readonly scope: Scope.Closeable
}

const kindOf = (byteLength: number, device: Device): string => `${byteLength} ${formatDevice(device)}`

/** A pool whose buffers are freed by the scope at the latest. */
export const makeBufferPool = (
  rank: Rank,
  engine: TensorEngineShape,
  limit: number
): Effect.Effect<BufferPool, never, Scope.Scope> =>
  Effect.map(Effect.scope, (whole) => {
    /** By size and device; the kind that waits longest comes first. */
    const idle = new Map<string, Array<Idle>>()
    const lent = new Map<Tensor, Scope.Closeable>()
    let [allocated, peak] = [0, 0]

    const pop = (kind: string): Idle | undefined => {
      const buffers = idle.get(kind)
      const found = buffers?.pop()
      if (buffers?.length === 0) idle.delete(kind)
      return found
    }
    const makeRoom = (byteLength: number): Effect.Effect<void> =>
      Effect.suspend(() => {
        const [kind] = idle.keys()
        if (allocated + byteLength <= limit || kind === undefined) return Effect.void
        const { buffer, scope } = pop(kind)!
        allocated -= buffer.shape[0]!
        return Effect.andThen(Scope.close(scope, Exit.void), makeRoom(byteLength))
      })
    const allocate = (byteLength: number, device: Device): Effect.Effect<Idle, ReshardError> =>
      Effect.gen(function* () {
        yield* makeRoom(byteLength)
        if (allocated + byteLength > limit) {
          return yield* reshardError("WritebackFailed", {
            rank,
            op: "buffer",
            detail: `A buffer of ${byteLength} bytes exceeds the limit: ${allocated} of ${limit} bytes are in use.`,
            remedy: "Release buffers before you take others."
          })
        }
        const scope = yield* Scope.fork(whole)
        const made = Scope.provide(engine.allocate("uint8", [byteLength], device), scope)
        const buffer = yield* made.pipe(
          Effect.mapError((error) => engineFailed(rank, "allocate", error)),
          Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
        )
        allocated += byteLength
        peak = Math.max(peak, allocated)
        return { buffer, scope }
      })

    return {
      limit,
      take: (byteLength, device) =>
        Effect.gen(function* () {
          const { buffer, scope } = pop(kindOf(byteLength, device)) ?? (yield* allocate(byteLength, device))
          lent.set(buffer, scope)
          return buffer
        }),
      giveBack: (buffer) =>
        Effect.sync(() => {
          const scope = lent.get(buffer)
          if (scope === undefined) return
          lent.delete(buffer)
          const kind = kindOf(buffer.shape[0]!, buffer.device)
          const buffers = idle.get(kind) ?? []
          buffers.push({ buffer, scope })
          idle.set(kind, buffers)
        }),
      peakBytes: () => peak
    }
  })

/** A dense tensor in a buffer of bytes. */
export const denseIn = (buffer: Tensor, dtype: DType, shape: Shape, offset: number): Tensor => ({
  ...buffer,
  dtype,
  shape,
  strides: rowMajorStrides(shape),
  byteOffset: buffer.byteOffset + offset
})

export interface DenseTensors {
  /** In the order of the request. */
  readonly tensors: ReadonlyArray<Tensor>
  readonly byteLength: number
}

/** Dense memory for tensors of these types, shapes and devices: one allocation per device. */
export const allocateDense = (
  rank: Rank,
  engine: TensorEngineShape,
  wanted: ReadonlyArray<Pick<Tensor, "dtype" | "shape" | "device">>
): Effect.Effect<DenseTensors, ReshardError, Scope.Scope> =>
  Effect.gen(function* () {
    const tensors = new Array<Tensor>(wanted.length)
    let byteLength = 0
    for (const [, group] of Map.groupBy(wanted.entries(), ([, { device }]) => formatDevice(device))) {
      const lengths = group.map(([, part]) => partByteLength(part))
      const [packed] = packParts(lengths, Number.MAX_SAFE_INTEGER)
      const allocated = engine.allocate("uint8", [packed!.byteLength], group[0]![1].device)
      const buffer = yield* Effect.mapError(allocated, (error) => engineFailed(rank, "allocate", error))
      byteLength += packed!.byteLength
      for (const { index, byteOffset } of packed!.parts) {
        const [at, { dtype, shape }] = group[index]!
        tensors[at] = denseIn(buffer, dtype, shape, byteOffset)
      }
    }
    return { tensors, byteLength }
  })
