// SPDX-License-Identifier: Apache-2.0
/**
 * Memory for lists of changes that stays from one update to the next: fresh pages take longer than what is written to them.
 *
 * Lists differ a little in length each time. They are lent in sizes of four steps per power of two, so that the next update
 * finds what this one had; what it does not need is freed at its end.
 */
import { makeUpdateMemory } from "@tensorferry/core/reshard/UpdateMemory"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

const smallest = 64

/** The next size at or above a length. */
export const lentLength = (length: number): number => {
  if (length <= smallest) return smallest
  const step = 2 ** Math.max(0, Math.floor(Math.log2(length)) - 2)
  return Math.ceil(length / step) * step
}

/** An engine that lends, and what an update does first in its scope. */
export interface ListMemory {
  readonly engine: TensorEngineShape
  readonly begin: Effect.Effect<void, never, Scope.Scope>
}

/** Memory of the updates of one rank, of which one is under way at a time. Outside of an update nothing is lent. */
export const makeListMemory = Effect.fnUntraced(function* (
  engine: TensorEngineShape
): Effect.fn.Return<ListMemory, never, Scope.Scope> {
  const memory = yield* makeUpdateMemory
  let lending = engine
  const allocate: TensorEngineShape["allocate"] = (dtype, shape, device) => {
    const [length, ...more] = shape
    if (length === undefined || more.length > 0) return lending.allocate(dtype, shape, device)
    return Effect.map(lending.allocate(dtype, [lentLength(length)], device), (tensor) => ({ ...tensor, shape }))
  }
  return {
    engine: { ...engine, allocate },
    begin: Effect.acquireRelease(
      Effect.flatMap(memory.borrow(engine), (borrowed) =>
        Effect.sync(() => {
          lending = borrowed
        })
      ),
      () =>
        Effect.sync(() => {
          lending = engine
        })
    )
  }
})
