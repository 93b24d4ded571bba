// SPDX-License-Identifier: Apache-2.0
/**
 * Whether another rank has given up the run in progress. Drivers need not notice: one that waits for messages of such a rank
 * would wait until its deadline.
 *
 * Invariant: an alert counts until the ranks have met after it, in `resync` or in an outcome that is a failure, and never
 * for a later run.
 */
import * as Effect from "effect/Effect"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupShape } from "../../service/ProcessGroup.ts"

export interface Alarm {
  /** The first rank that gave up. */
  readonly by: Effect.Effect<Rank | undefined>
  /** Alerts the others, unless one of them did so first. */
  readonly raise: Effect.Effect<void>
  /** All ranks have met: what was reported before belongs to no later run. */
  readonly settle: Effect.Effect<void>
}

export const makeAlarm = ({ alert, alerts }: ProcessGroupShape): Effect.Effect<Alarm> =>
  Effect.map(alerts, (before) => {
    let settled = before.length
    const by = Effect.map(alerts, (all) => all[settled])
    return {
      by,
      raise: Effect.flatMap(by, (rank) => (rank === undefined ? alert : Effect.void)),
      settle: Effect.map(alerts, ({ length }) => {
        settled = length
      })
    }
  })
