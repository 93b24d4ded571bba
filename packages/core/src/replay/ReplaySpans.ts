// SPDX-License-Identifier: Apache-2.0
/** The collector's part of a batch as a span of the learner's trace: its clock is the machine's, so is the learner's. */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import type { PackedBatch } from "./ReplayPackRequests.ts"

/** Adds the span to the tracer of the fiber. */
export const collectSpan = ({ tick, slot, pid, redrawn, startedAt, endedAt }: PackedBatch): Effect.Effect<void> =>
  Effect.gen(function* () {
    const tracer = yield* Effect.tracer
    const parent = yield* Effect.option(Effect.currentSpan)
    // What the monotonic clock of the machine calls `startedAt`, by the clock of this fiber.
    const offset = (yield* Clock.currentTimeNanos) - process.hrtime.bigint()
    const span = tracer.span({
      name: "replay.collect",
      parent,
      annotations: Context.empty(),
      links: [],
      startTime: startedAt + offset,
      kind: "internal",
      root: Option.isNone(parent),
      sampled: true
    })
    for (const [key, value] of Object.entries({
      tick,
      slot,
      redrawn,
      "process.pid": pid,
      "process.name": "collector"
    })) {
      span.attribute(key, value)
    }
    span.end(endedAt + offset, Exit.void)
  })
