// SPDX-License-Identifier: Apache-2.0
/**
 * A start of a device's program as the transfer of a copy driver, with the times that its parts took.
 *
 * Invariant: times are there only after the run has ended well.
 */
import type { CopyDriverError, InFlight } from "@tensorferry/core/service/CopyDriver"
import { nothingToMove } from "@tensorferry/native/driver/Transfers"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { GpuProgram } from "./GpuProgram.ts"
import { peerTimesOf, type RunTimes, runTimes, type Span } from "./RunTimes.ts"

/** What a driver keeps of a program's steps. */
export interface TransferProgram {
  /** Absent where this rank has nothing to do. */
  readonly program: GpuProgram | undefined
  readonly spans: ReadonlyArray<Span>
}

/** How a driver follows a run. */
export interface TransferEvents {
  /** The run could not start or did not end well; gives the error of it. */
  readonly failed: (failure: NativeFailure) => CopyDriverError
  /** Called with the device's times when a run has ended well. */
  readonly finished: (times: RunTimes) => void
  /** The run is about to be cancelled. */
  readonly stopping: () => void
}

/** Starts a program. */
export const startTransfer = (
  { program, spans }: TransferProgram,
  { failed, finished, stopping }: TransferEvents
): Result.Result<InFlight, CopyDriverError> => {
  if (program === undefined) return Result.succeed(nothingToMove)
  let taken: RunTimes | undefined
  return Result.mapBoth(program.start(), {
    onFailure: failed,
    onSuccess: (job): InFlight => ({
      isComplete: Effect.sync(job.isComplete),
      await: Effect.mapBoth(job.await, {
        onFailure: failed,
        onSuccess: (times) => {
          taken = runTimes(spans, times)
          finished(taken)
        }
      }),
      cancel: Effect.suspend(() => {
        if (job.isComplete()) return Effect.void
        stopping()
        return job.cancel
      }),
      movedBytes: Effect.sync(job.movedBytes),
      peerTimes: Effect.sync(() => (taken === undefined ? [] : peerTimesOf(taken)))
    })
  })
}
