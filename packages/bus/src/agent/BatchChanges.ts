// SPDX-License-Identifier: Apache-2.0
/**
 * A batch whose transfers move what changed since the one before. Each direction has copies of its own, on its senders.
 *
 * Invariant: all ranks of a batch make what they need of a direction in the first transfer that goes that way.
 */
import type { DeltaUpdates } from "@tensorferry/core/refit/DeltaUpdates"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import { busError } from "../BusError.ts"
import type { BatchMove } from "./BatchMove.ts"
import type { Direction } from "./BatchPlan.ts"
import type { Deal } from "./Held.ts"

interface Way {
  readonly lane: ProcessGroupShape
  updates: DeltaUpdates | undefined
}

/** What moves the changes of a batch, with copies of so many bytes at most, until the scope ends. */
export const makeBatchChanges = (batch: string, deal: Deal, baselineBytes: number, scope: Scope.Scope) => {
  const ways = new Map<Direction, Way>()

  const wayOf = Effect.fnUntraced(function* (direction: Direction) {
    const known = ways.get(direction)
    if (known !== undefined) return known
    const group = yield* ProcessGroup
    const made: Way = { lane: yield* group.lane(`changes ${deal.id} ${direction}`), updates: undefined }
    ways.set(direction, made)
    return made
  })

  /** Collective, as the plan of the move is. All ranks give the same version. */
  return Effect.fnUntraced(function* (
    direction: Direction,
    { plan, tensors, options: { transform } }: BatchMove,
    isSource: boolean,
    version: number | undefined
  ) {
    if (version === undefined)
      return yield* busError("InvalidCommand", {
        op: "Transfer",
        detail: `Batch ${batch} moves changes, and no rank states which version this is.`,
        remedy: "State a version that rises, on the ranks that send."
      })
    const way = yield* wayOf(direction)
    if (way.updates === undefined) {
      // Loaded only here: most batches never need it.
      const { makeDeltaUpdates } = yield* Effect.promise(() => import("@tensorferry/model/delta/makeDeltaUpdates"))
      const options = { baselineBytes, ...(transform === undefined ? {} : { transform }) }
      way.updates = yield* Scope.provide(makeDeltaUpdates(plan, options), scope)
    }
    const update = way.updates.update(
      { version: `${version}` },
      isSource ? tensors : undefined,
      isSource ? undefined : tensors
    )
    yield* Effect.provideService(update, ProcessGroup, way.lane)
  })
}

export type BatchChanges = ReturnType<typeof makeBatchChanges>
