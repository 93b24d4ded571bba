// SPDX-License-Identifier: Apache-2.0
/**
 * The learner of the `replay` commands over a ring on the host: makes ring and slots, starts the collector, and runs ticks
 * over a pipeline.
 */

import { ReplayPackRequests } from "@tensorferry/core/replay/ReplayPackRequests"
import { makeReplayPipeline, type ReplayPipeline } from "@tensorferry/core/replay/ReplayPipeline"
import { createReplayRing, replayRingBytes } from "@tensorferry/core/replay/ReplayRing"
import { allocateHostSlots, shareHostSlots } from "@tensorferry/core/replay/ReplaySlots"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { remotePackRequests } from "@tensorferry/replay/ReplayPackChannel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { startCollector } from "./Collector.ts"
import type { ReplayJob } from "./ReplayJob.ts"
import { patternLayout } from "./rowPattern.ts"
import { runTicks } from "./runTicks.ts"

/** Runs the whole job; `onTick` hears of each tick that has ended, out of all. */
export const runLearner = Effect.fnUntraced(function* (
  job: ReplayJob,
  onTick: (done: number, total: number) => Effect.Effect<void>
) {
  const backend = yield* ReplayTransferBackend
  const memory = yield* HostMemory
  const layout = yield* Effect.fromResult(patternLayout(job.width))
  const storage = yield* memory.allocate(replayRingBytes(layout, job.capacity))
  yield* Effect.fromResult(createReplayRing(storage, layout, job.capacity))
  const hostSlots = yield* allocateHostSlots(layout, job.rows, job.ringDepth)
  const deadline = Duration.millis(job.deadlineMillis)
  const channel = yield* startCollector(
    {
      _tag: "CollectorJob",
      ring: yield* memory.share(storage),
      slots: yield* shareHostSlots(hostSlots),
      rows: job.rows,
      fill: job.capacity,
      append: job.append
    },
    deadline
  )
  const pipeline: ReplayPipeline = yield* Effect.provideServiceEffect(
    makeReplayPipeline({ layout, rows: job.rows, seed: job.seed, hostSlots, deadline }),
    ReplayPackRequests,
    remotePackRequests(channel)
  )
  return yield* runTicks({ job, layout, pipeline, attributes: backend.attributes, takeIn: Effect.void, onTick })
}, Effect.scoped)
