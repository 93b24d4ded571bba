// SPDX-License-Identifier: Apache-2.0
/**
 * The time by which the bus keeps its deadlines. It only goes on: a step of the wall clock moves no deadline. All processes
 * of one host read the same value.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

/** Milliseconds since some moment of the past, equal for all processes of this host. */
export const monotonicMillis: Effect.Effect<number> = Effect.map(
  Clock.monotonicTimeNanos,
  (nanos) => Number(nanos / 1_000n) / 1_000
)
