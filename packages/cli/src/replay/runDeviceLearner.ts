// SPDX-License-Identifier: Apache-2.0
/**
 * The learner of the `replay` commands over a ring on the device: it makes the rows itself, pushes those of a tick once the
 * tick has ended, and takes batches that the device draws.
 */
import { makeReplayPipeline } from "@tensorferry/core/replay/ReplayPipeline"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { allocatePipelineSlots, layer as pipelineLayer } from "@tensorferry/replay/DevicePipeline"
import { DeviceReplayRing } from "@tensorferry/replay/DeviceReplayRing"
import { makeDeviceRing } from "@tensorferry/replay/DeviceRingLayer"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { ReplayJob } from "./ReplayJob.ts"
import { fillPattern, patternLayout } from "./rowPattern.ts"
import { runTicks } from "./runTicks.ts"

/** Bytes of rows that are made between two pushes of the first fill. */
const fillBytes = 2 ** 24

const runOver = Effect.fnUntraced(function* (
  job: ReplayJob,
  onTick: (done: number, total: number) => Effect.Effect<void>
) {
  const ring = yield* DeviceReplayRing
  const { layout } = ring
  const deadline = Duration.millis(job.deadlineMillis)
  let end = 0
  const push = Effect.fnUntraced(function* (count: number) {
    const rows = new Uint8Array(count * layout.rowBytes)
    fillPattern(rows, layout.rowBytes, BigInt(end))
    end = yield* ring.push(rows)
  })
  const most = Math.max(1, Math.floor(fillBytes / layout.rowBytes))
  while (end < job.capacity) yield* push(Math.min(most, job.capacity - end))
  const slots = yield* allocatePipelineSlots(job.rows, job.ringDepth)
  const services = yield* Layer.build(pipelineLayer(slots))
  const input = { layout, rows: job.rows, seed: job.seed, hostSlots: slots.hostSlots, deadline }
  const pipeline = yield* Effect.provideContext(makeReplayPipeline(input), services)
  const { attributes } = yield* Effect.provideContext(ReplayTransferBackend, services)
  return yield* runTicks({ job, layout, pipeline, attributes, takeIn: push(job.append), onTick })
})

/** Runs the whole job; `onTick` hears of each tick that has ended, out of all. */
export const runDeviceLearner = Effect.fnUntraced(function* (
  job: ReplayJob,
  onTick: (done: number, total: number) => Effect.Effect<void>
) {
  const layout = yield* Effect.fromResult(patternLayout(job.width))
  const deadline = Duration.millis(job.deadlineMillis)
  const ring = yield* makeDeviceRing({ layout, capacity: job.capacity, deadline })
  return yield* Effect.provideService(runOver(job, onTick), DeviceReplayRing, ring)
}, Effect.scoped)
