// SPDX-License-Identifier: Apache-2.0
/**
 * Plans by layout. A plan names tensors and regions, never memory, so it stays valid when buffers move; a layout that
 * changes in any way has another digest and gets another plan.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { Rank } from "../base/Ids.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import { type Roster, rosterDigest } from "../layout/Roster.ts"
import type { PlanError } from "../planner/PlanError.ts"
import { buildReshardPlan } from "../planner/RosterPlanner.ts"
import { inSpan } from "../service/Spans.ts"

/** Plans by rank and by the digest of both rosters. A failure is not kept. */
export interface PlanCacheShape {
  /** The plan for these layouts, made at the first request. */
  readonly get: (source: Roster, destination: Roster, rank: Rank) => Effect.Effect<ReshardPlan, PlanError>
  /** Requests answered without planning, for reports and tests. */
  readonly hits: Effect.Effect<number>
}

/** How many plans a cache keeps: those used last. */
export const PlanCacheCapacity = Context.Reference<number>("@tensorferry/core/reshard/PlanCache/Capacity", {
  defaultValue: () => 16
})

const make = (capacity: number): PlanCacheShape => {
  const plans = new Map<string, ReshardPlan>()
  let hits = 0
  return {
    hits: Effect.sync(() => hits),
    get: (source, destination, rank) =>
      Effect.suspend(() => {
        const key = `${rank}/${rosterDigest(source, destination)}`
        const known = plans.get(key)
        if (known !== undefined) {
          hits += 1
          plans.delete(key)
          plans.set(key, known)
          return Effect.succeed(known)
        }
        const made = Effect.suspend(() => Effect.fromResult(buildReshardPlan(source, destination, rank)))
        return Effect.map(
          inSpan(made, "PlanCache.plan", () => ({ rank })),
          (plan) => {
            plans.set(key, plan)
            if (plans.size > capacity) plans.delete(plans.keys().next().value!)
            return plan
          }
        )
      })
  }
}

/** The service that keeps plans by the digest of what they were made from, so that each is made once. */
export class PlanCache extends Context.Service<PlanCache, PlanCacheShape>()("@tensorferry/core/reshard/PlanCache") {
  /** One cache for whatever it is provided to, of as many plans as `PlanCacheCapacity` says. */
  static readonly layer: Layer.Layer<PlanCache> = Layer.effect(PlanCache, Effect.map(PlanCacheCapacity, make))
}
