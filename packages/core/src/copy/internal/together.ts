// SPDX-License-Identifier: Apache-2.0
/**
 * What all ranks do together once they have agreed on a run: compile, move, and settle how it ended.
 *
 * Invariant: a rank that another one has left behind stops at once, and so does one whose peers are to stop.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import { type CopyError, copyError, type RunOptions } from "../../service/CopyService.ts"
import type { CopyBatch } from "./batch.ts"
import { emptyBatch } from "./check.ts"
import { compile } from "./compile.ts"
import { execute } from "./execute.ts"
import type { Agreement, RunCollectives } from "./handshake.ts"
import type { CopyMachine } from "./machine.ts"
import type { CopyParts } from "./parts.ts"
import type { CompiledProgram } from "./runState.ts"
import { settle } from "./settle.ts"
import { makeRunTimes, type RunTimes } from "./telemetry.ts"

export const makeTogether = (
  parts: CopyParts,
  machine: CopyMachine,
  collectives: RunCollectives,
  /** The driver, built again where it is broken. */
  ready: Effect.Effect<CopyDriverShape, CopyError>
) => {
  const { signals, backend, rank, telemetry } = parts

  const echoes = new WeakSet<CopyError>()
  const isEcho = (failure: CopyError): boolean => echoes.has(failure)
  /** This rank's driver may count on the peer still, so it is built again. */
  const gaveUp = (peer: Rank): CopyError => {
    const echo = copyError("PeerGone", [peer], {
      backend,
      rank,
      peer,
      op: "run",
      scope: "service",
      isRetryable: true,
      detail: `Rank ${peer} reported that it does not finish the run.`,
      remedy: "See the output of that rank for the reason, then run again."
    })
    echoes.add(echo)
    return echo
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
        Effect.flatMap(
          signals.unless(
            () => signals.alarm.by() !== undefined,
            execute(parts, machine, driver, program, batch, runOptions, times)
          ),
          (moved) =>
            Option.isSome(moved)
              ? Effect.succeed(program)
              : Effect.fail(parts.calls.overdue() ?? gaveUp(signals.alarm.by() ?? rank))
        )
      if (reused !== undefined) return move(reused)
      const compiled = compile(parts, machine, collectives, driver, batch, agreement)
      return Effect.flatMap(telemetry.phase(times, "prepare", compiled), move)
    })

  /** Takes part in what others do together, without a batch. Ranks that are in the run learn of a failure, this one not. */
  const takePart = (agreement: Agreement): Effect.Effect<void, CopyError> =>
    Effect.gen(function* () {
      if (agreement.mustRebuild) yield* machine.on({ _tag: "Outdated" })
      const done = yield* Effect.result(carryOut(emptyBatch, agreement, undefined, {}, makeRunTimes()))
      if (Result.isFailure(done)) yield* signals.alarm.raise
      yield* Effect.ignore(settle(collectives, machine, "copy outcome", done, isEcho))
      const isBroken = Result.isFailure(done) && done.failure.reason.scope === "service"
      yield* machine.on({ _tag: isBroken ? "Outdated" : "Dropped" })
    })
  /**
   * Once this rank has reported that it is done, its peers may end the run well, so an interruption waits until they have read
   * its memory, or given up.
   */
  const settleAll = (executed: Result.Result<CompiledProgram, CopyError>) =>
    Effect.uninterruptibleMask((restore) => {
      const settling = settle(collectives, machine, "copy outcome", executed, isEcho)
      return Effect.flatMap(
        Effect.forkIn(Effect.interruptible(settling), parts.scope, { startImmediately: true }),
        (fiber) =>
          Effect.onInterrupt(restore(Fiber.join(fiber)), () =>
            Effect.andThen(
              signals.alarm.sound,
              Effect.flatMap(Fiber.await(fiber), (exit) =>
                machine.on({ _tag: "Settled", isOk: Exit.isSuccess(exit), known: undefined })
              )
            )
          )
      )
    })

  return { carryOut, takePart, settle: settleAll }
}
