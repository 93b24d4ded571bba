// SPDX-License-Identifier: Apache-2.0
/**
 * Memory that one update after the other borrows for what it casts, stages and transforms. An update that asks for the
 * same shapes in the same order gets the same storages again, so that what the copy service compiled for them fits again.
 *
 * Invariants: a buffer has one borrower at a time; it goes back when the borrower's scope closes, and is freed when an
 * update ended without it, at the latest with the scope of the whole.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { formatShape } from "../base/Region.ts"
import type { TensorEngineShape, TensorError } from "../service/TensorEngine.ts"
import { formatDevice } from "../tensor/Device.ts"
import type { Tensor } from "../tensor/Tensor.ts"

/** Buffers that updates borrow and give back, so that the next one need not allocate them again. */
export interface UpdateMemory {
  /**
   * The engine for one update, whose `allocate` borrows. When the scope closes, buffers that this update did not need are
   * freed; to be called first in that scope.
   */
  readonly borrow: (engine: TensorEngineShape) => Effect.Effect<TensorEngineShape, never, Scope.Scope>
}

interface Buffer {
  readonly tensor: Tensor
  readonly scope: Scope.Closeable
  lastUpdate: number
}

/** Memory for updates, freed by the scope. */
export const makeUpdateMemory: Effect.Effect<UpdateMemory, never, Scope.Scope> = Effect.gen(function* () {
  const whole = yield* Effect.scope
  /** Buffers that nobody has, by engine and by type, shape and device; the next one to lend comes last. */
  const idle = new Map<TensorEngineShape, Map<string, Array<Buffer>>>()
  let updates = 0

  const make = (allocate: ReturnType<TensorEngineShape["allocate"]>): Effect.Effect<Buffer, TensorError> =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(whole)
      const allocated = Scope.provide(allocate, scope)
      const tensor = yield* Effect.onError(allocated, (cause) => Scope.close(scope, Exit.failCause(cause)))
      return { tensor, scope, lastUpdate: updates }
    })

  const freeUnused = (update: number): Effect.Effect<void> =>
    Effect.suspend(() => {
      const unused: Array<Buffer> = []
      for (const [engine, byKind] of idle) {
        for (const [kind, buffers] of byKind) {
          unused.push(...buffers.filter(({ lastUpdate }) => lastUpdate < update))
          const kept = buffers.filter(({ lastUpdate }) => lastUpdate >= update)
          if (kept.length > 0) byKind.set(kind, kept)
          else byKind.delete(kind)
        }
        if (byKind.size === 0) idle.delete(engine)
      }
      return Effect.forEach(unused, ({ scope }) => Scope.close(scope, Exit.void), { discard: true })
    })

  return {
    borrow: (engine) =>
      Effect.gen(function* () {
        const update = yield* Effect.acquireRelease(
          Effect.sync(() => ++updates),
          freeUnused
        )
        const buffersOf = (kind: string): Array<Buffer> => {
          const byKind = idle.get(engine) ?? new Map<string, Array<Buffer>>()
          const buffers = byKind.get(kind) ?? []
          idle.set(engine, byKind.set(kind, buffers))
          return buffers
        }
        const allocate: TensorEngineShape["allocate"] = (dtype, shape, device) => {
          const kind = `${dtype}${formatShape(shape)} ${device === undefined ? "" : formatDevice(device)}`
          const taken = Effect.suspend(() => {
            const buffers = buffersOf(kind)
            let known = buffers.pop()
            while (known?.tensor.storage.isFreed() === true) known = buffers.pop()
            return known === undefined ? make(engine.allocate(dtype, shape, device)) : Effect.succeed(known)
          })
          const giveBack = (buffer: Buffer) => Effect.sync(() => void buffersOf(kind).push(buffer))
          return Effect.acquireRelease(taken, giveBack).pipe(
            Effect.map((buffer) => {
              buffer.lastUpdate = update
              return buffer.tensor
            })
          )
        }
        return { ...engine, allocate }
      })
  }
})
