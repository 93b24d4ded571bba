/**
 * Feeds a learner one large batch per tick: while it computes on the hot batch, the next ones are packed and copied.
 *
 * A pipeline has `ringDepth` slots, each a host slot and a device slot. With 1 the learner waits for every batch; with 2
 * one is hot and one cold; more are prepared ahead. Each slot is in one of these states:
 * ```
 *   idle ──startPrepare──▶ packing ──packed──▶ copying ──copied──▶ cold ──sampleLargeBatch──▶ hot
 *    ▲                        │                   │                  (from copying, too)       │
 *    │◀──── failure told ── failed ◀──────────────┘                                            │
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
 * - A slot's host memory is packed anew only when its copy has ended; its device memory is written anew only when also
 *   the consumer is done with it: at `afterTick`, or when the Effect given to `afterTick` has ended, where the consumer's
 *   work is still queued on the device then.
 * - A failed batch is told once, by the wait or sample that comes to it, and its slot is idle again. That tick can be
 *   prepared again where no later one was. After a failed copy of the hot batch, `afterTick` tells it.
 * - Every wait has a deadline; when it passes or the wait is interrupted, nothing changes and the wait can be repeated.
 *   The pipeline's scope ends all preparations before anything is freed.
 *
 * Spans (`replay.pack`, `replay.collect` of the collector's own work, `replay.submit`, `replay.copy`, `replay.wait`,
 * `replay.swap`) go to the caller's tracer.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type ReplayStream, ReplayTransferBackend, type ReplayTransferError } from "../service/ReplayTransferBackend.ts"
import { inSpan } from "../service/Spans.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { type PackedBatch, ReplayPackRequests } from "./ReplayPackRequests.ts"
import { batchError, type ReplayPipelineError, replayPipelineError } from "./ReplayPipelineError.ts"
import { type ColumnViews, columnViews, type RowLayout } from "./ReplayRowLayout.ts"
import { collectSpan } from "./ReplaySpans.ts"

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

/** What a pipeline has done so far, in batches and seconds. */
export interface ReplayPipelineReport {
  /** Sampled so far. */
  readonly batches: number
  readonly rows: number
  readonly bytes: number
  /** The learner waited for batches. */
  readonly stallSeconds: number
  /** From request to answer. */
  readonly packSeconds: number
  readonly submitSeconds: number
  /** On the device where it keeps time, else from the submission until the copy was seen to have ended. */
  readonly copySeconds: number
  /** Rows that were overwritten while they were packed, and drawn again. */
  readonly redrawn: number
}

export interface ReplayPipeline {
  readonly startPrepare: (tick: number) => Effect.Effect<void, ReplayPipelineError>
  readonly batchReady: Effect.Effect<boolean, ReplayPipelineError>
  readonly waitUntilReady: Effect.Effect<void, ReplayPipelineError>
  readonly sampleLargeBatch: (stream?: ReplayStream) => Effect.Effect<LargeBatch, ReplayPipelineError>
  readonly afterTick: (consumed?: Effect.Effect<void>) => Effect.Effect<void, ReplayPipelineError>
  readonly idleSlots: Effect.Effect<number>
  readonly report: Effect.Effect<ReplayPipelineReport>
}

interface Prepared {
  readonly tick: number
  readonly slot: number
  /** Ends when the copy was handed to the backend, with what the collector answered. */
  readonly submitted: Deferred.Deferred<PackedBatch, ReplayPipelineError>
  /** Ends when nobody uses the slot for this batch any more. */
  readonly ended: Deferred.Deferred<void, ReplayPipelineError>
}

const transferFailed = (batch: Prepared, error: ReplayTransferError): ReplayPipelineError =>
  batchError(error.reason._tag === "DeadlineExceeded" ? "DeadlineExceeded" : "TransferFailed", batch, {
    ...(error.reason.backend === undefined ? {} : { backend: error.reason.backend }),
    op: error.reason.op ?? "submitH2d",
    detail: `${error.reason._tag}: ${error.reason.detail}`,
    remedy: error.reason.remedy,
    isRetryable: error.reason.isRetryable
  })

const wrongState = (op: string, detail: string, remedy: string, slot?: number): ReplayPipelineError =>
  replayPipelineError("WrongState", { op, detail, remedy, ...(slot === undefined ? {} : { slot }) })

const closed = (op: string, tick: number): ReplayPipelineError =>
  wrongState(op, `Tick ${tick}: the pipeline is closed.`, "Keep the pipeline's scope open while it is used.")

const isNatural = (value: number): boolean => Number.isSafeInteger(value) && value >= 0

const secondsOf = (nanos: bigint): number => Number(nanos) / 1e9

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
      `${depth} slots of ${rows} rows with seed ${seed} make no pipeline.`,
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

  /** First in, first out, so that slots are used in turn. */
  const idle = Array.from({ length: depth }, (_, slot) => slot)
  const prepared: Array<Prepared> = []
  /** What must have happened before a device slot is written anew. */
  const consumed = new Array<Effect.Effect<void>>(depth).fill(Effect.void)
  let hot: { readonly batch: Prepared; readonly large: LargeBatch } | undefined
  let lastTick = -1
  let isClosed = false
  const sums = { batches: 0, stall: 0n, pack: 0n, submit: 0, copy: 0, redrawn: 0 }

  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      isClosed = true
    })
  )

  const now = Clock.currentTimeNanos
  const spanOf = <A, E>(effect: Effect.Effect<A, E>, name: string, { tick, slot }: Prepared): Effect.Effect<A, E> =>
    inSpan(effect, name, () => ({ tick, slot, rows, bytes: rows * layout.rowBytes }))
  const transfer = <A>(batch: Prepared, effect: Effect.Effect<A, ReplayTransferError>) =>
    Effect.mapError(effect, (error) => transferFailed(batch, error))

  const pack = Effect.fnUntraced(function* (batch: Prepared) {
    const { tick, slot } = batch
    const start = yield* now
    const packed = yield* requests.pack({ tick, slot, seed, rows })
    sums.pack += (yield* now) - start
    sums.redrawn += packed.redrawn
    yield* collectSpan(packed)
    return packed
  })

  const prepare = Effect.fnUntraced(function* (batch: Prepared) {
    const { slot } = batch
    // A copy that was given up on, and still reads the host slot.
    if ((yield* transfer(batch, backend.slotState(slot))) === "submitted") {
      yield* Effect.ignore(backend.waitReady(slot))
      if ((yield* transfer(batch, backend.slotState(slot))) === "submitted") {
        return yield* batchError("DeadlineExceeded", batch, {
          op: "waitReady",
          detail: "An earlier copy of the slot does not end.",
          remedy: "See whether the device still works."
        })
      }
    }
    const packed = yield* spanOf(pack(batch), "replay.pack", batch)
    yield* consumed[slot]!
    const start = yield* now
    yield* transfer(batch, backend.clearReady(slot))
    const submission = { slot, destination: deviceSlots[slot]!, source: hostSlots[slot]! }
    sums.submit += yield* spanOf(transfer(batch, backend.submitH2d(submission)), "replay.submit", batch)
    yield* Deferred.succeed(batch.submitted, packed)
    // A deferred copy happens in the consumer's wait, which nobody may make in its place.
    if (isDeferred) return
    yield* spanOf(transfer(batch, backend.waitReady(slot)), "replay.copy", batch)
    sums.copy += (yield* transfer(batch, backend.copySeconds(slot))) ?? secondsOf((yield* now) - start)
  })

  const inBackground = (batch: Prepared): Effect.Effect<Fiber.Fiber<unknown>> =>
    prepare(batch).pipe(
      Effect.onExit((exit) => {
        const told =
          Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause) ? Exit.fail(closed("prepare", batch.tick)) : exit
        const unsubmitted = Exit.isFailure(told) ? Deferred.failCause(batch.submitted, told.cause) : Effect.void
        return Effect.andThen(unsubmitted, Deferred.done(batch.ended, told))
      }),
      Effect.exit,
      Effect.forkIn(background)
    )

  const startPrepare = (tick: number) =>
    Effect.uninterruptible(
      Effect.suspend(() => {
        if (isClosed) return Effect.fail(closed("startPrepare", tick))
        const newest = prepared.at(-1)?.tick ?? lastTick
        if (!isNatural(tick) || tick <= newest) {
          const detail = `Tick ${tick} cannot be prepared after tick ${newest}.`
          return Effect.fail(wrongState("startPrepare", detail, "Prepare ticks in growing order."))
        }
        const slot = idle.shift()
        if (slot === undefined) {
          const detail = `Tick ${tick}: none of ${depth} slots is idle.`
          return Effect.fail(wrongState("startPrepare", detail, "Call afterTick first, or use a larger ring depth."))
        }
        const batch = { tick, slot, submitted: Deferred.makeUnsafe(), ended: Deferred.makeUnsafe() } as Prepared
        prepared.push(batch)
        return Effect.asVoid(inBackground(batch))
      })
    )

  const oldest = (op: string): Effect.Effect<Prepared, ReplayPipelineError> =>
    Effect.suspend(() => {
      const batch = prepared[0]
      return batch === undefined
        ? Effect.fail(wrongState(op, "No batch was prepared.", "Call startPrepare first."))
        : Effect.succeed(batch)
    })

  /** Takes a batch that failed out of the queue, once. What still works on it keeps its slot. */
  const drop = (batch: Prepared): Effect.Effect<void> =>
    Effect.sync(() => {
      if (prepared[0] !== batch || !Deferred.isDoneUnsafe(batch.ended)) return
      prepared.shift()
      idle.push(batch.slot)
    })

  /** A batch whose preparation has ended is not waited for, unless the consumer's wait makes the copy: no timer is needed. */
  const inDeadline = <A>(
    batch: Prepared,
    wait: Effect.Effect<A, ReplayPipelineError>,
    late: () => ReplayPipelineError
  ): Effect.Effect<A, ReplayPipelineError> =>
    !isDeferred && Deferred.isDoneUnsafe(batch.ended)
      ? wait
      : Effect.timeoutOrElse(wait, { duration: deadline, orElse: () => Effect.fail(late()) })

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
      const told = Effect.tapError(inTime, () => (isLate ? Effect.void : Effect.andThen(quiet(batch), drop(batch))))
      return yield* Effect.onExit(told, () =>
        Effect.map(now, (end) => {
          sums.stall += end - start
        })
      )
    })
    return spanOf(waiting, "replay.wait", batch)
  }

  /** Ends when the preparation has, however it did, and at the deadline. */
  const quiet = (batch: Prepared): Effect.Effect<void> =>
    Effect.ignore(Effect.timeoutOption(Deferred.await(batch.ended), deadline))

  const awaitCopied = (batch: Prepared): Effect.Effect<unknown, ReplayPipelineError> =>
    Effect.andThen(
      Deferred.await(batch.ended),
      isDeferred ? transfer(batch, backend.waitReady(batch.slot)) : Effect.void
    )

  const sample = (stream: ReplayStream | undefined): Effect.Effect<LargeBatch, ReplayPipelineError> =>
    Effect.gen(function* () {
      if (hot !== undefined) return hot.large
      const op = "sampleLargeBatch"
      const batch = yield* oldest(op)
      const { slot, tick } = batch
      const ordered = Effect.gen(function* () {
        const packed = yield* Deferred.await(batch.submitted)
        yield* transfer(batch, backend.waitCurrentStreamForReady(slot, stream))
        return packed
      })
      const packed = yield* stalled(op, batch, ordered)
      // Someone else may have sampled it while this one waited.
      if (hot === undefined && prepared[0] === batch) {
        prepared.shift()
        lastTick = tick
        sums.batches += 1
        hot = { batch, large: { tick, slot, rows: deviceSlots[slot]!, columns: columns[depth + slot]!, packed } }
      }
      return hot?.large ?? (yield* sample(stream))
    })

  const swap = (done: Effect.Effect<void>) => {
    const swapping = Effect.gen(function* () {
      const used = hot
      if (used === undefined) {
        return yield* wrongState("afterTick", "No batch is hot.", "Call sampleLargeBatch first.")
      }
      const { batch } = used
      const release = Effect.sync(() => {
        if (hot !== used) return
        hot = undefined
        consumed[batch.slot] = done
        idle.push(batch.slot)
      })
      const exit = yield* inDeadline(batch, Effect.exit(Deferred.await(batch.ended)), () =>
        batchError("DeadlineExceeded", batch, {
          op: "afterTick",
          detail: `The copy did not end within ${Duration.format(deadline)}.`,
          remedy: "See whether the device still works, and call afterTick again.",
          isRetryable: true
        })
      )
      yield* release
      yield* exit
    })
    return inSpan(swapping, "replay.swap", () => ({ tick: hot?.batch.tick }))
  }

  return {
    startPrepare,
    batchReady: Effect.suspend(() => {
      const batch = prepared[0]
      if (batch === undefined || !Deferred.isDoneUnsafe(batch.submitted)) return Effect.succeed(false)
      // A failure is told by the wait; the learner should come and hear it.
      return Effect.orElseSucceed(backend.isReady(batch.slot), () => true)
    }),
    waitUntilReady: Effect.flatMap(
      Effect.suspend(() => oldest("waitUntilReady")),
      (batch) => Effect.asVoid(stalled("waitUntilReady", batch, awaitCopied(batch)))
    ),
    sampleLargeBatch: (stream) => sample(stream),
    afterTick: (done) => Effect.suspend(() => swap(done ?? Effect.void)),
    idleSlots: Effect.sync(() => idle.length),
    report: Effect.sync(() => ({
      batches: sums.batches,
      rows: sums.batches * rows,
      bytes: sums.batches * rows * layout.rowBytes,
      stallSeconds: secondsOf(sums.stall),
      packSeconds: secondsOf(sums.pack),
      submitSeconds: sums.submit,
      copySeconds: sums.copy,
      redrawn: sums.redrawn
    }))
  }
})
