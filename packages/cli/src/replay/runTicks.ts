// SPDX-License-Identifier: Apache-2.0
/**
 * The loop of a learner of the `replay` commands, over whatever ring: takes batches, verifies and uses them, and measures.
 *
 * Invariant: the first ticks, in which slots are touched for the first time and everything starts, are not counted.
 */
import type { LargeBatch, ReplayPipeline, ReplayPipelineReport } from "@tensorferry/core/replay/ReplayPipeline"
import type { RowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import type { ReplayTransferAttributes } from "@tensorferry/core/service/ReplayTransferBackend"
import { ticking } from "@tensorferry/core/service/RunningTime"
import { inSeconds, untilWords } from "@tensorferry/core/service/sayWaiting"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { compute } from "./compute.ts"
import { replayError } from "./ReplayError.ts"
import type { ReplayJob } from "./ReplayJob.ts"
import { findFault } from "./rowPattern.ts"

export interface ReplayResult extends ReplayPipelineReport {
  readonly attributes: ReplayTransferAttributes
  readonly rowBytes: number
  /** Of the ticks that count. */
  readonly seconds: number
  readonly rowsVerified: number
}

const warmUpTicks = 2

/**
 * Says for which batch the learner waits, which `waiting` names with the time by the clock of `performance` at which that began. One
 * clock for all batches: a fiber for each would be measured with it.
 */
const sayTicks = (
  deadlineMillis: number,
  waiting: () => { readonly tick: number; readonly since: number } | undefined
) =>
  Effect.gen(function* () {
    const context = yield* Effect.context<never>()
    let [tick, next] = [-1, 0]
    yield* ticking(1000, () => {
      const now = waiting()
      if (now === undefined) return
      if (now.tick !== tick) [tick, next] = [now.tick, 3000]
      const millis = performance.now() - now.since
      if (millis < next) return
      next = 3 * millis
      const text = `Waited ${inSeconds(millis)} for batch ${tick} from the ring${untilWords(deadlineMillis, millis)}.`
      Effect.runForkWith(context)(Effect.logInfo(text))
    })
  })

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

/** What a loop runs over. */
export interface TicksInput<E, R> {
  readonly job: ReplayJob
  readonly layout: RowLayout
  readonly pipeline: ReplayPipeline
  readonly attributes: Effect.Effect<ReplayTransferAttributes>
  /** Takes in the new rows of a tick, where this process does. */
  readonly takeIn: Effect.Effect<unknown, E, R>
  /** Hears of each tick that has ended, out of all. */
  readonly onTick: (done: number, total: number) => Effect.Effect<void>
}

/** Runs all ticks. */
export const runTicks = Effect.fnUntraced(function* <E, R>({
  attributes,
  job,
  layout,
  onTick,
  pipeline,
  takeIn
}: TicksInput<E, R>) {
  const total = warmUpTicks + job.ticks
  let prepared = 0
  const prepareAhead = Effect.gen(function* () {
    while (prepared < total && (yield* pipeline.idleSlots) > 0) yield* pipeline.startPrepare(prepared++)
  })
  let before = yield* pipeline.report
  let start = yield* Clock.monotonicTimeNanos
  let rowsVerified = 0
  let waiting: { readonly tick: number; readonly since: number } | undefined
  yield* Effect.forkScoped(sayTicks(job.deadlineMillis, () => waiting))
  for (let tick = 0; tick < total; tick++) {
    if (tick === warmUpTicks) {
      before = yield* pipeline.report
      start = yield* Clock.monotonicTimeNanos
    }
    yield* prepareAhead
    waiting = { tick, since: performance.now() }
    yield* pipeline.waitUntilReady
    waiting = undefined
    const batch = yield* pipeline.sampleLargeBatch()
    yield* prepareAhead
    if (job.verify) {
      yield* verifyBatch(job, layout.rowBytes, batch)
      rowsVerified += job.rows
    }
    yield* Effect.withSpan(compute(batch.rows, job.computeMillis), "learner.compute", { attributes: { tick } })
    yield* pipeline.afterTick()
    yield* takeIn
    yield* onTick(tick + 1, total)
  }
  const seconds = Number((yield* Clock.monotonicTimeNanos) - start) / 1e9
  const result: ReplayResult = {
    ...since(before, yield* pipeline.report),
    attributes: yield* attributes,
    rowBytes: layout.rowBytes,
    seconds,
    rowsVerified
  }
  return result
})
