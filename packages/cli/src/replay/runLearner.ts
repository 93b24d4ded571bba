// SPDX-License-Identifier: Apache-2.0
/**
 * The learner of the `replay` commands: makes ring and slots, starts the collector, and runs ticks over a pipeline.
 *
 * Invariant: the first ticks, in which slots are touched for the first time and everything starts, are not counted.
 */

import { ReplayPackRequests } from "@tensorferry/core/replay/ReplayPackRequests"
import {
  type LargeBatch,
  makeReplayPipeline,
  type ReplayPipeline,
  type ReplayPipelineReport
} from "@tensorferry/core/replay/ReplayPipeline"
import { createReplayRing, replayRingBytes } from "@tensorferry/core/replay/ReplayRing"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import { allocateHostSlots, shareHostSlots } from "@tensorferry/core/replay/ReplaySlots"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { type ReplayTransferAttributes, ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import { remotePackRequests } from "@tensorferry/replay/ReplayPackChannel"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { startCollector } from "./Collector.ts"
import { compute } from "./compute.ts"
import { replayError } from "./ReplayError.ts"
import type { ReplayJob } from "./ReplayJob.ts"
import { findFault, patternLayout } from "./rowPattern.ts"

export interface ReplayResult extends ReplayPipelineReport {
  readonly attributes: ReplayTransferAttributes
  readonly rowBytes: number
  /** Of the ticks that count. */
  readonly seconds: number
  readonly rowsVerified: number
}

const warmUpTicks = 2

/** Compares all rows with those that seed and tick must have picked. The device's rows are copied back to the host. */
const verifyBatch = Effect.fnUntraced(function* (
  job: ReplayJob,
  rowBytes: number,
  { packed, rows, slot, tick }: LargeBatch
) {
  let bytes = tensorBytes(rows)
  if (bytes === undefined) {
    const engine = yield* TensorEngine
    const storage = yield* (yield* HostMemory).allocate(tensorByteLength(rows))
    const host = yield* Effect.orDie(Effect.fromResult(tensorView(storage, "uint8", rows.shape)))
    yield* engine.copy([{ dst: host, src: rows }])
    bytes = tensorBytes(host)!
  }
  const range = Number(packed.end - packed.first)
  const offsets = drawRows({ seed: job.seed, tick, rows: job.rows, range })
  const found = findFault(bytes, rowBytes, (at) => packed.first + BigInt(offsets[at]!))
  if (found === undefined) return
  return yield* replayError("WrongRows", {
    slot,
    op: "verify",
    detail: `Tick ${tick}: row ${found.at} of the batch ${found.detail}.`,
    remedy: "This is a fault of tensorferry or of the device's driver; please report it."
  })
}, Effect.scoped)

const since = (before: ReplayPipelineReport, after: ReplayPipelineReport): ReplayPipelineReport => ({
  batches: after.batches - before.batches,
  rows: after.rows - before.rows,
  bytes: after.bytes - before.bytes,
  stallSeconds: after.stallSeconds - before.stallSeconds,
  packSeconds: after.packSeconds - before.packSeconds,
  submitSeconds: after.submitSeconds - before.submitSeconds,
  copySeconds: after.copySeconds - before.copySeconds,
  redrawn: after.redrawn - before.redrawn
})

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
  const total = warmUpTicks + job.ticks
  let prepared = 0
  const prepareAhead = Effect.gen(function* () {
    while (prepared < total && (yield* pipeline.idleSlots) > 0) yield* pipeline.startPrepare(prepared++)
  })
  let before = yield* pipeline.report
  let start = yield* Clock.monotonicTimeNanos
  let rowsVerified = 0
  for (let tick = 0; tick < total; tick++) {
    if (tick === warmUpTicks) {
      before = yield* pipeline.report
      start = yield* Clock.monotonicTimeNanos
    }
    yield* prepareAhead
    yield* pipeline.waitUntilReady
    const batch = yield* pipeline.sampleLargeBatch()
    yield* prepareAhead
    if (job.verify) {
      yield* verifyBatch(job, layout.rowBytes, batch)
      rowsVerified += job.rows
    }
    yield* Effect.withSpan(compute(batch.rows, job.computeMillis), "learner.compute", { attributes: { tick } })
    yield* pipeline.afterTick()
    yield* onTick(tick + 1, total)
  }
  const seconds = Number((yield* Clock.monotonicTimeNanos) - start) / 1e9
  const result: ReplayResult = {
    ...since(before, yield* pipeline.report),
    attributes: yield* backend.attributes,
    rowBytes: layout.rowBytes,
    seconds,
    rowsVerified
  }
  return result
}, Effect.scoped)
