// SPDX-License-Identifier: Apache-2.0
/**
 * How long members and controllers wait, in seconds of a clock that no wall clock moves.
 *
 * Safety rests on two rules. A member serves until `fence` after it *began* the last look at the history that named it a
 * member, counted by all the time that passes, also while it was stopped. A controller lets no version be committed before
 * it has counted `fence + grace` since it saw the last removal, by its own beats, of which each counts for at most two; so a
 * controller that was stopped counts too little rather than too much. `grace` has to exceed by how much two clocks drift
 * apart within `fence`.
 */
import * as Schema from "effect/Schema"

const Seconds = Schema.Finite.check(Schema.isBetween({ minimum: 0.01, maximum: 86_400 }))

/** See the head of this file. Equal for all who take part. */
export const FleetTimes = Schema.Struct({
  /** From one look at the history to the next. */
  beat: Seconds,
  /** How long a member serves after its last look. */
  fence: Seconds,
  /** Added to `fence` by everybody else. */
  grace: Seconds,
  /**
   * Silence after which a member is removed. Where another member has lost its connection to it, a quarter of that is enough,
   * and two beats at least.
   */
  dead: Seconds,
  /** From a proposal until all have staged it. */
  stage: Seconds,
  /** From the call to stop serving until all have. */
  prepare: Seconds
})
export type FleetTimes = typeof FleetTimes.Type

/** For fleets on a network without long stalls. */
export const defaultFleetTimes: FleetTimes = { beat: 0.5, fence: 4, grace: 1, dead: 4, stage: 600, prepare: 10 }
