// SPDX-License-Identifier: Apache-2.0
/**
 * Programs of a device: steps that were compiled once and run any number of times.
 *
 * Invariant: a program is closed once, and only after its last run has ended.
 */
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import type { NativeJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { NativeCommunicator, NativeStreamCalls, SpanTimes } from "./Addon.ts"
import type { Gpu } from "./Gpu.ts"

/** The tables of one program and what its steps use. */
export interface ProgramSteps {
  /** Of a `StepTable`. */
  readonly steps: BigUint64Array
  /** Of `MoveTable`s; steps name them by their place here. */
  readonly moves: ReadonlyArray<BigUint64Array>
  /** For steps that send and receive. */
  readonly communicator?: NativeCommunicator | undefined
  /** For steps that call another addon. */
  readonly calls?: NativeStreamCalls | undefined
}

/** Steps that were uploaded once and run any number of times. */
export interface GpuProgram {
  /** Runs that have not ended. */
  readonly runs: () => number
  /** `finished` runs once when the run has ended, not if it never started. */
  readonly start: (finished?: () => void) => Result.Result<NativeJob<SpanTimes>, NativeFailure>
  /** Runs and waits; interruption cancels the run and waits for that. */
  readonly run: Effect.Effect<SpanTimes, NativeFailure>
  /** Closes it now, or after its last run. Later calls do nothing. */
  readonly close: () => void
}

/** Uploads a program. Fails with what the addon refuses, such as a wrong number in a table. */
export const makeProgram = (
  gpu: Gpu,
  { steps, moves, communicator, calls }: ProgramSteps
): Result.Result<GpuProgram, NativeFailure> => {
  const { addon, native } = gpu
  const made = addon.createProgram(native, steps, moves, communicator, calls)
  if (made.code !== "Ok") return Result.fail(made)
  const program = made.value
  let runs = 0
  let isWanted = true
  const closeIfDone = () => {
    if (!isWanted && runs === 0) addon.closeProgram(program)
  }
  const ended = () => {
    runs -= 1
    closeIfDone()
  }
  const begin = (done: Parameters<typeof addon.startProgram>[1]) => addon.startProgram(program, done)
  return Result.succeed({
    runs: () => runs,
    start: (finished = () => {}) => {
      runs += 1
      const started = gpu.start<SpanTimes>(begin, () => {
        ended()
        finished()
      })
      if (Result.isFailure(started)) ended()
      return started
    },
    run: Effect.suspend(() => {
      runs += 1
      return gpu.run<SpanTimes>(begin, ended)
    }),
    close: () => {
      if (!isWanted) return
      isWanted = false
      closeIfDone()
    }
  })
}

/** A program that is closed with the scope; none where there are no steps. */
export const acquireProgram = (
  gpu: Gpu,
  errors: DriverErrors,
  steps: ProgramSteps
): Effect.Effect<GpuProgram | undefined, CopyDriverError, Scope.Scope> =>
  steps.steps.length === 0
    ? Effect.undefined
    : Effect.acquireRelease(
        Effect.mapError(
          Effect.suspend(() => Effect.fromResult(makeProgram(gpu, steps))),
          (failure) => errors.ofNative(failure, "prepare")
        ),
        (made) => Effect.sync(made.close)
      )

/** Runs steps once. `finished` runs once when nothing of them is left, also if they never started. */
export const runOnce = (
  gpu: Gpu,
  program: ProgramSteps,
  finished: () => void = () => {}
): Effect.Effect<SpanTimes, NativeFailure> =>
  Effect.suspend(() => {
    const made = makeProgram(gpu, program)
    if (Result.isFailure(made)) {
      finished()
      return Effect.fail(made.failure)
    }
    return Effect.ensuring(
      made.success.run,
      Effect.sync(() => {
        made.success.close()
        finished()
      })
    )
  })
