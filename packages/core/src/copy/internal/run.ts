// SPDX-License-Identifier: Apache-2.0
/**
 * One run of a copy service: agreement, compilation, execution and outcome, as events of its machine.
 *
 * Invariant: all ranks pass the same sequence of collectives, whatever happens on one of them.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import type { CopyError, CopyOp, CopyReport, RunOptions } from "../../service/CopyService.ts"
import { annotatePhase } from "../../service/Spans.ts"
import type { Fence } from "../../service/TensorEngine.ts"
import { fromTensorError } from "../CopyFailures.ts"
import { type CopyBatch, memoryKey } from "./batch.ts"
import { emptyBatch, makeBatchMemory } from "./check.ts"
import { compile } from "./compile.ts"
import { driverOf } from "./driver.ts"
import { execute } from "./execute.ts"
import { type Agreement, agree, makeHandshakeMemory, type RunCollectives } from "./handshake.ts"
import type { CopyMachine } from "./machine.ts"
import type { CopyParts } from "./parts.ts"
import { reportOf } from "./report.ts"
import { type CompiledProgram, isOver, type LiveDriver } from "./runState.ts"
import { settle } from "./settle.ts"
import { makeRunTimes, type RunTimes } from "./telemetry.ts"

/** Runs batches, one at a time; the machine is in `Waiting` when a run begins. */
export const makeRun = <E>(
  parts: CopyParts,
  machine: CopyMachine,
  first: CopyDriverShape,
  build: Effect.Effect<LiveDriver, E>
) => {
  const { group, alarm, backend, rank, stagingBytes, telemetry } = parts
  const makeBatch = makeBatchMemory()
  const collectives: RunCollectives = {
    group,
    alarm,
    memory: makeHandshakeMemory(),
    parted: machine.on({ _tag: "Parted" })
  }
  const ready = driverOf(parts, machine, build)

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
    return makeBatch(machine.state().driver?.driver ?? first, queue)
  }

  /** This rank's statement to the others; each of them gets the same agreement or the same failure. */
  const statement = (
    own: Result.Result<CopyBatch, CopyError>,
    plan: RunOptions["plan"]
  ): Effect.Effect<Agreement, CopyError> => {
    const batch = Result.getOrElse(own, () => emptyBatch)
    const { program, driver } = machine.state()
    return agree(collectives, {
      backend,
      stagingBytes,
      rounds: parts.rounds.roundsOf(batch),
      batch,
      plan,
      agreed: program?.agreed ?? "",
      isStale: program === undefined || program.memory !== memoryKey(batch),
      isBroken: driver === undefined,
      fault: Result.isFailure(own) ? own.failure : undefined
    })
  }

  const carryOut = (
    batch: CopyBatch,
    agreement: Agreement,
    reused: CompiledProgram | undefined,
    runOptions: RunOptions,
    times: RunTimes
  ): Effect.Effect<CompiledProgram, CopyError> =>
    Effect.flatMap(ready, (driver) => {
      const move = (program: CompiledProgram) =>
        Effect.as(execute(parts, machine, driver, program, batch, runOptions, times), program)
      if (reused !== undefined) return move(reused)
      const compiled = compile(parts, machine, collectives, driver, batch, agreement)
      return Effect.flatMap(telemetry.phase(times, "prepare", compiled), move)
    })

  return Effect.fnUntraced(function* (
    queue: ReadonlyArray<CopyOp>,
    runOptions: RunOptions
  ): Effect.fn.Return<CopyReport, CopyError> {
    const times = makeRunTimes()
    const { runs, leaving } = machine.state()
    if (leaving !== undefined) {
      yield* Fiber.await(leaving)
      yield* machine.on({ _tag: "Rejoined" })
    }
    const fences = yield* Effect.result(awaitFences(runOptions.after ?? []))
    const own = check(queue, fences, runOptions.refuse)
    // An interruption of the wait does not take the statement back.
    const agreeing = yield* Effect.forkIn(statement(own, runOptions.plan), parts.scope, { startImmediately: true })
    yield* machine.on({ _tag: "Stated", agreeing })
    const agreement = yield* telemetry.phase(times, "handshake", Fiber.join(agreeing))
    yield* machine.on({ _tag: "Agreed", agreement })
    const { phase } = machine.state()
    const reused = phase._tag === "Moving" ? phase.reused : undefined
    const batch = Result.getOrElse(own, () => emptyBatch)
    const executed = yield* Effect.result(carryOut(batch, agreement, reused, runOptions, times))
    // Whatever failed here, no rank shall wait for this one's messages longer than needed.
    if (Result.isFailure(executed) && !isOver(machine.state())) yield* alarm.raise
    const isBroken = Result.isFailure(executed) && executed.failure.reason.scope === "service"
    yield* machine.on({ _tag: "Moved", isBroken })
    const settled = yield* Effect.result(
      isOver(machine.state())
        ? Effect.fromResult(executed)
        : telemetry.phase(times, "outcome", settle(collectives, machine, "copy outcome", executed))
    )
    yield* machine.on({ _tag: "Settled", isOk: Result.isSuccess(settled) })
    const program = yield* Effect.fromResult(settled)
    const report = {
      ...reportOf({ backend, rank }, batch, program, reused !== undefined, times),
      ...(runOptions.plan === undefined ? {} : { planRuns: agreement.runs })
    }
    yield* annotatePhase(() => ({
      run: runs,
      bytesSent: report.remoteBytesSent,
      bytesReceived: report.remoteBytesReceived,
      bytesLocal: report.localBytes,
      messages: report.messages,
      reusedProgram: report.reusedProgram
    }))
    return report
  })
}
