// SPDX-License-Identifier: Apache-2.0
/**
 * Feeds a learner one large batch per tick: while it computes on the hot batch, the next ones are packed and copied.
 *
 * A pipeline has `ringDepth` slots, each a host slot and a device slot. With 1 the learner waits for every batch; with 2
 * one is hot and one cold; more are prepared ahead. Each slot is in one of these states:
 * ```
 *   idle ──startPrepare──▶ packing ──packed──▶ copying ──copied──▶ cold ──sampleLargeBatch──▶ hot
 *    ▲                        │                   │                  (from copying, too)       │
 *    │◀────── reported ──── failed ◀──────────────┘                                            │
 *    └─────────────────────────────────── afterTick ──────────────────────────────────────────┘
 * ```
 * Contract
 * - Ticks are prepared in growing order and sampled in that order. The batch of a tick is the rows that the seed and the
 *   tick pick out of the ring's snapshot at the time of packing, whatever the depth and whoever is slow.
 * - `startPrepare` takes an idle slot and returns at once; without one it fails with `WrongState`, so a loop prepares
 *   while `idleSlots` is positive. `afterTick` makes the hot slot idle.
 * - `batchReady`: the oldest prepared batch is on the device. `waitUntilReady` waits for that on the host.
 *   `sampleLargeBatch` does not: it makes the consumer's stream wait for the copy, and answers views of the device slot.
 *   Called again before `afterTick` it answers the same batch.
 * - A slot's host memory is packed again only when its copy has ended; its device memory is written again only when also
 *   the consumer is done with it: at `afterTick`, or when the Effect given to `afterTick` has ended, where the consumer's
 *   work is still queued on the device then.
 * - A failed batch is reported once, by the wait or sample that comes to it, and its slot is idle again. That tick can be
 *   prepared again where no later one was. After a failed copy of the hot batch, `afterTick` reports it.
 * - Every wait has a deadline; when it passes or the wait is interrupted, nothing changes and the wait can be repeated.
 *   The pipeline's scope ends all preparations before anything is freed.
 *
 * Spans (`replay.pack`, `replay.collect` of the collector's own work, `replay.submit`, `replay.copy`, `replay.wait`,
 * `replay.swap`) go to the caller's tracer.
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type ReplayStream, ReplayTransferBackend, type ReplayTransferError } from "../service/ReplayTransferBackend.ts"
import { orAfterRunningTime, withinRunningTime } from "../service/RunningTime.ts"
import { inSpan } from "../service/Spans.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { makeAccounts } from "./internal/accounts.ts"
import {
  begin,
  drop,
  initialPipeline,
  oldest,
  type PipelineState,
  type Prepared,
  release,
  sample
} from "./internal/pipelineState.ts"
import { makePreparing, transfer } from "./internal/preparing.ts"
import { type PackedBatch, ReplayPackRequests } from "./ReplayPackRequests.ts"
import { batchError, type ReplayPipelineError, wrongState } from "./ReplayPipelineError.ts"
import type { ReplayPipelineReport } from "./ReplayPipelineReport.ts"
import { type ColumnViews, columnViews, type RowLayout } from "./ReplayRowLayout.ts"

/** What a pipeline is made of. */
export interface ReplayPipelineInput {
  readonly layout: RowLayout
  /** Of one batch. */
  readonly rows: number
  /** Natural number; fixes the rows of all ticks. */
  readonly seed: number
  /** One per slot, in memory that the packer of the requests reaches. Their number is the depth. */
  readonly hostSlots: ReadonlyArray<Tensor>
  /** What every wait waits for at most; 60 s by default. */
  readonly deadline?: Duration.Input
}

/** A batch in its device slot, with views of its columns. */
export interface LargeBatch {
  readonly tick: number
  readonly slot: number
  /** The device slot, `[rows, rowBytes]` bytes. */
  readonly rows: Tensor
  /** Named views of it. */
  readonly columns: ColumnViews
  /** Which snapshot it was drawn from. */
  readonly packed: PackedBatch
}

export type { ReplayPipelineReport }

/** Batches on their way from a replay ring to a device, some ticks ahead of the learner. */
export interface ReplayPipeline {
  /** Has the batch of a tick packed and copied to an idle slot, and returns before it is. Fails where no slot is idle. */
  readonly startPrepare: (tick: number) => Effect.Effect<void, ReplayPipelineError>
  /** Whether the next batch is on the device. Never waits. */
  readonly batchReady: Effect.Effect<boolean, ReplayPipelineError>
  /** Ends when the next batch is on the device, or fails with why it is not. */
  readonly waitUntilReady: Effect.Effect<void, ReplayPipelineError>
  /** Makes the next batch the hot one; its columns are views of the device slot, valid until `afterTick`. */
  readonly sampleLargeBatch: (stream?: ReplayStream) => Effect.Effect<LargeBatch, ReplayPipelineError>
  /** Ends the use of the hot batch: its slot is idle once `consumed` has ended. */
  readonly afterTick: (consumed?: Effect.Effect<void>) => Effect.Effect<void, ReplayPipelineError>
  /** Slots into which `startPrepare` may put a batch. */
  readonly idleSlots: Effect.Effect<number>
  /** Counts and seconds so far. */
  readonly report: Effect.Effect<ReplayPipelineReport>
}

const isNatural = (value: number): boolean => Number.isSafeInteger(value) && value >= 0

const now = Clock.monotonicTimeNanos

/** A pipeline over the backend and the packer in the context; they must outlive its scope. */
export const makeReplayPipeline = Effect.fnUntraced(function* (
  input: ReplayPipelineInput
): Effect.fn.Return<
  ReplayPipeline,
  ReplayPipelineError | ReplayTransferError,
  ReplayTransferBackend | ReplayPackRequests | Scope.Scope
> {
  const { hostSlots, layout, rows, seed } = input
  const deadline = Duration.fromInputUnsafe(input.deadline ?? "60 seconds")
  const depth = hostSlots.length
  const backend = yield* ReplayTransferBackend
  const requests = yield* ReplayPackRequests
  const background = yield* Effect.scope
  if (depth < 1 || !isNatural(seed) || !isNatural(rows) || rows < 1) {
    return yield* wrongState(
      "makeReplayPipeline",
      `${depth} slots of ${rows} rows with seed ${seed} are not valid for a pipeline.`,
      "Give at least one slot, at least one row and a natural seed."
    )
  }
  yield* backend.registerHostSlots(hostSlots)
  const shape = [rows, layout.rowBytes]
  const deviceSlots = yield* backend.allocateDeviceSlots({ count: depth, shape, dtype: "uint8" })
  const columns: Array<ColumnViews> = []
  for (const slot of [...hostSlots, ...deviceSlots]) {
    const views = columnViews(layout, slot)
    if (Result.isFailure(views) || slot.shape[0] !== rows) {
      const detail = Result.isFailure(views) ? views.failure.detail : `A slot has ${slot.shape[0]} rows, not ${rows}.`
      return yield* wrongState("makeReplayPipeline", detail, "Allocate slots of this layout and rows.")
    }
    columns.push(views.success)
  }
  const isDeferred = (yield* backend.attributes).h2dSubmitter === "torch_copy_deferred"

  let state: PipelineState<LargeBatch> = initialPipeline(depth)
  /** What must have happened before a device slot is written again. */
  const consumed = new Array<Effect.Effect<void>>(depth).fill(Effect.void)
  const accounts = makeAccounts(rows, layout.rowBytes)
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      state = { ...state, isClosed: true }
    })
  )
  const { inBackground, spanOf } = makePreparing({
    backend,
    requests,
    scope: background,
    rows,
    rowBytes: layout.rowBytes,
    seed,
    hostSlots,
    deviceSlots,
    consumed,
    isDeferred,
    accounts
  })

  const startPrepare = (tick: number) =>
    Effect.uninterruptible(
      Effect.suspend(() => {
        const begun = begin(state, tick, { submitted: Deferred.makeUnsafe(), ended: Deferred.makeUnsafe() })
        if (Result.isFailure(begun)) return Effect.fail(begun.failure)
        state = begun.success.state
        return Effect.asVoid(inBackground(begun.success.batch))
      })
    )

  const next = (op: string): Effect.Effect<Prepared, ReplayPipelineError> =>
    Effect.suspend(() => Effect.fromResult(oldest(state, op)))

  /** Takes a batch that failed out of the queue, once. What still works on it keeps its slot. */
  const dropEnded = (batch: Prepared): Effect.Effect<void> =>
    Effect.sync(() => {
      if (Deferred.isDoneUnsafe(batch.ended)) state = drop(state, batch)
    })

  /** A batch whose preparation has ended is not waited for, unless the consumer's wait makes the copy: no timer is needed. */
  const inDeadline = <A>(
    batch: Prepared,
    wait: Effect.Effect<A, ReplayPipelineError>,
    late: () => ReplayPipelineError
  ): Effect.Effect<A, ReplayPipelineError> =>
    !isDeferred && Deferred.isDoneUnsafe(batch.ended)
      ? wait
      : orAfterRunningTime(wait, { duration: deadline, orElse: () => Effect.fail(late()) })

  /** Waits at most until the deadline, keeps account of the stall, and drops the batch where it failed. */
  const stalled = <A>(op: string, batch: Prepared, wait: Effect.Effect<A, ReplayPipelineError>) => {
    const waiting = Effect.gen(function* () {
      const start = yield* now
      let isLate = false
      const inTime = inDeadline(batch, wait, () => {
        isLate = true
        return batchError("DeadlineExceeded", batch, {
          op,
          detail: `The batch was not ready within ${Duration.format(deadline)}.`,
          remedy: "See whether the collector is frozen or the device slow, and wait again.",
          isRetryable: true
        })
      })
      const dropped = Effect.tapError(inTime, () =>
        isLate ? Effect.void : Effect.andThen(quiet(batch), dropEnded(batch))
      )
      return yield* Effect.onExit(dropped, () => Effect.map(now, (end) => accounts.stalled(end - start)))
    })
    return spanOf(waiting, "replay.wait", batch)
  }

  /** Ends when the preparation has, however it did, and at the deadline. */
  const quiet = (batch: Prepared): Effect.Effect<void> =>
    Effect.ignore(withinRunningTime(Deferred.await(batch.ended), deadline))

  const awaitCopied = (batch: Prepared): Effect.Effect<unknown, ReplayPipelineError> =>
    Effect.andThen(
      Deferred.await(batch.ended),
      isDeferred ? transfer(batch, backend.waitReady(batch.slot)) : Effect.void
    )

  const takeSample = (stream: ReplayStream | undefined): Effect.Effect<LargeBatch, ReplayPipelineError> =>
    Effect.gen(function* () {
      if (state.hot !== undefined) return state.hot.large
      const op = "sampleLargeBatch"
      const batch = yield* next(op)
      const { slot, tick } = batch
      const ordered = Effect.gen(function* () {
        const packed = yield* Deferred.await(batch.submitted)
        yield* transfer(batch, backend.waitCurrentStreamForReady(slot, stream))
        return packed
      })
      const packed = yield* stalled(op, batch, ordered)
      // Someone else may have sampled it while this one waited.
      const large = { tick, slot, rows: deviceSlots[slot]!, columns: columns[depth + slot]!, packed }
      const before = state
      state = sample(state, { batch, large })
      if (state !== before) accounts.sampled()
      return state.hot?.large ?? (yield* takeSample(stream))
    })

  const swap = (done: Effect.Effect<void>) => {
    const swapping = Effect.gen(function* () {
      const used = state.hot
      if (used === undefined) {
        return yield* wrongState("afterTick", "No batch is in use.", "Call sampleLargeBatch first.")
      }
      const { batch } = used
      const exit = yield* inDeadline(batch, Effect.exit(Deferred.await(batch.ended)), () =>
        batchError("DeadlineExceeded", batch, {
          op: "afterTick",
          detail: `The copy did not end within ${Duration.format(deadline)}.`,
          remedy: "See whether the device still works, and call afterTick again.",
          isRetryable: true
        })
      )
      const before = state
      state = release(state, used)
      if (state !== before) consumed[batch.slot] = done
      yield* exit
    })
    return inSpan(swapping, "replay.swap", () => ({ tick: state.hot?.batch.tick }))
  }

  return {
    startPrepare,
    batchReady: Effect.suspend(() => {
      const [batch] = state.prepared
      if (batch === undefined || !Deferred.isDoneUnsafe(batch.submitted)) return Effect.succeed(false)
      // The wait reports a failure; the learner should come for it.
      return Effect.orElseSucceed(backend.isReady(batch.slot), () => true)
    }),
    waitUntilReady: Effect.flatMap(next("waitUntilReady"), (batch) =>
      Effect.asVoid(stalled("waitUntilReady", batch, awaitCopied(batch)))
    ),
    sampleLargeBatch: takeSample,
    afterTick: (done) => Effect.suspend(() => swap(done ?? Effect.void)),
    idleSlots: Effect.sync(() => state.idle.length),
    report: Effect.sync(accounts.report)
  }
})
