// SPDX-License-Identifier: Apache-2.0
/**
 * A few buffers of the host, used again and again, through which bytes pass between files and memory that a file cannot be
 * read into. The device reaches them at the speed of its link where the engine can pin memory.
 *
 * Invariant: a buffer has one user at a time. One whose user was left to itself is never given to another.
 */
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"

/** A buffer, and the same bytes as memory that the engine copies from and to. */
export interface Staged {
  readonly bytes: Uint8Array
  readonly storage: Storage
  /** Where the bytes begin in the storage. */
  readonly byteOffset: number
}

/** Memory is pinned by whole pages of the system. A buffer has its pages alone: a copy may not begin in pinned memory and end beside it. */
const pageBytes = 64 * 1024

/** Buffers that are made when they are first needed. */
export interface StagingRing {
  /** Runs with a buffer that nobody else has; waits until one is free. */
  readonly use: <A, E, R>(body: (staged: Staged) => Effect.Effect<A, E, R>) => Effect.Effect<A, E | TensorError, R>
  /** Buffers that were made. */
  readonly made: () => number
}

/** A ring of at most `count` buffers of `byteLength` bytes, which end with the scope. */
export const makeStagingRing = (
  count: number,
  byteLength: number
): Effect.Effect<StagingRing, never, TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const scope = yield* Effect.scope
    const permits = yield* Semaphore.make(count)
    const free: Array<Staged> = []
    let made = 0
    const make = Effect.gen(function* () {
      made += 1
      const pages = Math.ceil(byteLength / pageBytes) * pageBytes
      const all = new Uint8Array(new ArrayBuffer(pages + pageBytes))
      const storage = yield* engine.wrapHost(all)
      const byteOffset = Number(BigInt.asUintN(16, -storage.address))
      const whole = Result.getOrThrow(tensorView(storage, "uint8", [pages], { byteOffset }))
      if (engine.pinHost !== undefined) yield* engine.pinHost(whole)
      return { bytes: all.subarray(byteOffset, byteOffset + byteLength), storage, byteOffset }
    })
    const take: Effect.Effect<Staged, TensorError> = Effect.suspend(() => {
      const known = free.pop()
      return known === undefined ? Scope.provide(make, scope) : Effect.succeed(known)
    })
    return {
      use: (body) =>
        Semaphore.withPermit(
          permits,
          Effect.flatMap(take, (staged) => Effect.tap(body(staged), () => Effect.sync(() => free.push(staged))))
        ),
      made: () => made
    }
  })
