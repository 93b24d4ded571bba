// SPDX-License-Identifier: Apache-2.0
/**
 * One run of a copy service, as events of its machine: a repetition of what is known, or agreement, compilation, execution
 * and outcome.
 *
 * Invariant: all ranks pass the same sequence of collectives, whatever happens on one of them; those that are ahead of a run
 * included.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type { CopyError, CopyOp, CopyReport, RunOptions } from "../../service/CopyService.ts"
import { annotatePhase } from "../../service/Spans.ts"
import type { Fence } from "../../service/TensorEngine.ts"
import { fromTensorError } from "../CopyFailures.ts"
import { batchDigest, type CopyBatch } from "./batch.ts"
import { emptyBatch, makeBatchMemory } from "./check.ts"
import { driverOf } from "./driver.ts"
import { finishingOnce, type OnceOptions } from "./finishOnce.ts"
import { type Agreement, makeHandshakeMemory, type RunCollectives } from "./handshake.ts"
import { type CopyMachine, makeMachine } from "./machine.ts"
import { makeMeetings } from "./meetings.ts"
import type { CopyParts } from "./parts.ts"
import { repeat, repetitionOf } from "./repeat.ts"
import { reportOf } from "./report.ts"
import { isOver, type Known, type LiveDriver } from "./runState.ts"
import { makeRunTimes, type RunTimes } from "./telemetry.ts"
import { makeTogether } from "./together.ts"

/** Runs batches, one at a time. */
export interface CopyRunner {
  readonly machine: CopyMachine
  /** The machine is in `Waiting` when a run begins. */
  readonly run: (queue: ReadonlyArray<CopyOp>, runOptions: RunOptions) => Effect.Effect<CopyReport, CopyError>
  /** While no run is in progress: takes part in runs of others that this rank has behind it. */
  readonly answerOthers: Effect.Effect<undefined, CopyError>
  /** Whether others wait for this rank in a run that it has behind it. */
  readonly isAwaited: () => boolean
}

export const makeRunner = <E>(parts: CopyParts, first: LiveDriver, build: Effect.Effect<LiveDriver, E>): CopyRunner => {
  const { group, signals, backend, rank, telemetry, isPairwise } = parts
  const machine = makeMachine(parts, first, (fault) => meetings.state({ own: Result.fail(fault) }))
  const makeBatch = makeBatchMemory()
  const collectives: RunCollectives = {
    group,
    alarm: signals.alarm,
    memory: makeHandshakeMemory(),
    parted: machine.on({ _tag: "Parted" })
  }

  const awaitFences = (after: ReadonlyArray<Fence>): Effect.Effect<void, CopyError> =>
    after.length === 0
      ? Effect.void
      : Effect.forEach(
          after,
          (fence) => Effect.mapError(fence.await, (error) => fromTensorError(rank, "after", error)),
          { discard: true }
        )

  /** What this rank has to run, or why it cannot. */
  const check = (
    queue: ReadonlyArray<CopyOp>,
    fences: Result.Result<void, CopyError>,
    refuse: CopyError | undefined
  ): Result.Result<CopyBatch, CopyError> => {
    if (refuse !== undefined) return Result.fail(refuse)
    if (Result.isFailure(fences)) return Result.fail(fences.failure)
    return makeBatch(machine.state().driver?.driver ?? first.driver, queue)
  }

  const together = makeTogether(parts, machine, collectives, driverOf(parts, machine, build))
  const meetings = makeMeetings(parts, machine, collectives, together.takePart)

  /** What may be repeated. Rounds of messages have all ranks meet between them, and some programs in their start. */
  const knownAfter = (batch: CopyBatch, agreement: Agreement, plan: RunOptions["plan"]): Known | undefined =>
    !isPairwise ||
    agreement.ahead.size > 0 ||
    agreement.rounds > 1 ||
    machine.state().program?.rounds.some(({ program }) => program.needsGroup === true) === true
      ? undefined
      : { batch: batchDigest(batch), plan: plan?.digest, runs: agreement.runs }

  const note = (report: CopyReport) =>
    Effect.as(
      annotatePhase(() => ({
        run: machine.state().place.run,
        bytesSent: report.remoteBytesSent,
        bytesReceived: report.remoteBytesReceived,
        bytesLocal: report.localBytes,
        messages: report.messages,
        reusedProgram: report.reusedProgram
      })),
      report
    )

  /** Repeats the batch where it is known; undefined where all ranks must agree on the run. */
  const attempt = Effect.fnUntraced(function* (
    own: Result.Result<CopyBatch, CopyError>,
    runOptions: OnceOptions,
    times: RunTimes
  ): Effect.fn.Return<CopyReport | undefined, CopyError> {
    const state = machine.state()
    const isKnown = Result.isSuccess(own) && runOptions.together !== true
    const repetition = isKnown ? repetitionOf(state, own.success, runOptions.plan) : undefined
    if (repetition === undefined) return undefined
    yield* Effect.uninterruptible(Effect.andThen(machine.on({ _tag: "Counted" }), machine.on({ _tag: "Repeating" })))
    if (!(yield* repeat(parts, machine, repetition, runOptions, times))) return undefined
    yield* machine.on({ _tag: "Settled", isOk: true, known: state.known })
    const report = reportOf({ backend, rank }, repetition.batch, repetition.program, true, times)
    return runOptions.plan === undefined ? report : { ...report, planRuns: state.known!.runs }
  })

  /** All ranks agree on the run, and end it together. */
  const runTogether = Effect.fnUntraced(function* (
    own: Result.Result<CopyBatch, CopyError>,
    agreeing: Fiber.Fiber<Agreement, CopyError>,
    runOptions: RunOptions,
    times: RunTimes
  ): Effect.fn.Return<CopyReport, CopyError> {
    const agreement = yield* telemetry.phase(times, "handshake", Fiber.join(agreeing))
    yield* machine.on({ _tag: "Agreed", agreement })
    const { phase } = machine.state()
    const reused = phase._tag === "Moving" ? phase.reused : undefined
    const whole = Result.getOrElse(own, () => emptyBatch)
    const batch = meetings.left(whole, agreement.ahead, agreement.place.run)
    const executed = yield* Effect.result(together.carryOut(batch, agreement, reused, runOptions, times))
    // Whatever failed here, no rank shall wait for this one's messages longer than needed.
    if (Result.isFailure(executed) && !isOver(machine.state())) yield* signals.alarm.raise
    const isBroken = Result.isFailure(executed) && executed.failure.reason.scope === "service"
    yield* machine.on({ _tag: "Moved", isBroken })
    const settled = yield* Effect.result(
      isOver(machine.state())
        ? Effect.fromResult(executed)
        : telemetry.phase(times, "outcome", together.settle(executed))
    )
    const known = knownAfter(whole, agreement, runOptions.plan)
    yield* machine.on({ _tag: "Settled", isOk: Result.isSuccess(settled), known })
    const program = yield* Effect.fromResult(settled)
    const report = reportOf({ backend, rank }, whole, program, reused !== undefined, times)
    return runOptions.plan === undefined ? report : { ...report, planRuns: agreement.runs }
  })

  const run = Effect.fnUntraced(function* (
    queue: ReadonlyArray<CopyOp>,
    given: RunOptions
  ): Effect.fn.Return<CopyReport, CopyError> {
    const runOptions = finishingOnce(given)
    const times = makeRunTimes()
    const { leaving } = machine.state()
    if (leaving !== undefined) {
      yield* Fiber.await(leaving)
      yield* machine.on({ _tag: "Rejoined" })
    }
    const fences = yield* Effect.result(awaitFences(runOptions.after ?? []))
    const own = check(queue, fences, runOptions.refuse)
    const repeated = yield* Effect.result(attempt(own, runOptions, times))
    if (Result.isSuccess(repeated) && repeated.success !== undefined) return yield* note(repeated.success)
    const agreeing = yield* Effect.uninterruptible(
      Effect.gen(function* () {
        if (Result.isFailure(repeated)) {
          yield* machine.on({ _tag: repeated.failure.reason.scope === "service" ? "Outdated" : "Dropped" })
        }
        yield* machine.on({ _tag: machine.state().phase._tag === "Repeating" ? "Convened" : "Counted" })
        const statement = {
          own: Result.isFailure(repeated) ? Result.fail(repeated.failure) : own,
          plan: runOptions.plan
        }
        return yield* machine.agree(meetings.state(statement))
      })
    )
    return yield* note(yield* runTogether(own, agreeing, runOptions, times))
  })

  return { machine, run, answerOthers: meetings.answerOthers, isAwaited: meetings.isAwaited }
}
