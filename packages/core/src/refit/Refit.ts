// SPDX-License-Identifier: Apache-2.0
/**
 * Updates one model from another again and again: agree and plan once, then move as often as weights change.
 *
 * `prepare` is collective and exchanges what ranks hold; `swap` is collective and moves. Tensors are looked up at every
 * swap, so buffers may be reallocated in between; what may not change is the layout. Buffers for casts, transforms and
 * updates in place are kept from one swap to the next, until the scope of `prepare` closes.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { ParameterMetadata } from "../layout/ParameterMetadata.ts"
import type { AnyPlan } from "../planner/MeshOps.ts"
import type { PlanError } from "../planner/PlanError.ts"
import { type ExecuteOptions, executeReshardPlan, type ReshardReport } from "../reshard/executeReshardPlan.ts"
import { PlanCache } from "../reshard/PlanCache.ts"
import type { ReshardError } from "../reshard/ReshardError.ts"
import { exchangeRosters } from "../reshard/RosterExchange.ts"
import { makeUpdateMemory } from "../reshard/UpdateMemory.ts"
import type { CopyError, CopyService } from "../service/CopyService.ts"
import { ProcessGroup } from "../service/ProcessGroup.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"

/** A plan that all ranks agreed on, and how to carry it out again and again. */
export interface PreparedRefit {
  /** What this rank sends, receives and copies. */
  readonly plan: AnyPlan
  /** Moves the weights once, from the source into the destination; collective. A rank without one side leaves it out. */
  readonly swap: (
    source?: TensorDict,
    destination?: TensorDict,
    options?: ExecuteOptions
  ) => Effect.Effect<ReshardReport, ReshardError | CopyError, CopyService | TensorEngine>
}

/**
 * Keeps a plan that this rank has, such as one between meshes. Nothing is exchanged: ranks whose plans differ learn of it in
 * their first swap.
 */
export const prepared = (plan: AnyPlan): Effect.Effect<PreparedRefit, never, Scope.Scope> =>
  Effect.map(makeUpdateMemory, (memory) => ({
    plan,
    swap: (source, destination, options) => executeReshardPlan(plan, source, destination, { memory, ...options })
  }))

/** Exchanges what this rank holds on each side (nothing, for a rank that is not part of it) and plans. */
export const prepare = Effect.fn("Refit.prepare")(function* (holdings: {
  readonly source?: ReadonlyArray<ParameterMetadata>
  readonly destination?: ReadonlyArray<ParameterMetadata>
}): Effect.fn.Return<PreparedRefit, ReshardError | PlanError, ProcessGroup | PlanCache | Scope.Scope> {
  const group = yield* ProcessGroup
  const cache = yield* PlanCache
  const rosters = yield* exchangeRosters(group, holdings.source ?? [], holdings.destination ?? [])
  const plan = yield* cache.get(rosters.source, rosters.destination, group.rank)
  return yield* prepared(plan)
})
