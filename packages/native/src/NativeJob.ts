// SPDX-License-Identifier: Apache-2.0
/**
 * Native work as Effects: started at once, awaited any number of times, cancelled with a wait.
 *
 * Invariant: `run` never ends before the native side has stopped touching memory, whether it succeeds, fails or is
 * interrupted.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { NativeAnswer, NativeFailure, NativeHandle } from "./NativeAddon.ts"

/** Threads of an addon, until `closePool`. */
export type NativePool = NativeHandle<"pool">
/** A job of an addon, which ends by itself and calls back once. */
export type NativeJobHandle = NativeHandle<"job">

/** What every addon offers for its jobs. */
export interface JobControl {
  /** Asks a job to end early. It still reports its end. */
  readonly cancelJob: (job: NativeJobHandle) => NativeAnswer<undefined>
  /** How far a job is. */
  readonly movedBytes: (job: NativeJobHandle) => NativeAnswer<number>
}

/** What addons offer whose jobs run on pools of threads. */
export interface PoolControl {
  /** Threads of the addon that carry jobs out. */
  readonly createPool: (threads: number) => NativeAnswer<NativePool>
  /** Cancels and joins. */
  readonly closePool: (pool: NativePool) => NativeAnswer<undefined>
}

/** Work that a thread of the addon does: how to wait for it, and how to end it. */
export interface NativeJob<A> {
  /** True once the job has ended, well or not. Never waits. */
  readonly isComplete: () => boolean
  /** What the job gave, or why it failed; interruption cancels the job and waits for its end. */
  readonly await: Effect.Effect<A, NativeFailure>
  /** Tells the native side to stop and waits until it has. */
  readonly cancel: Effect.Effect<void>
  /** How far it is. */
  readonly movedBytes: () => number
}

/** What starts a job: gets the callback, answers the handle. */
export type Start<A> = (done: (answer: NativeAnswer<A>) => void) => NativeAnswer<NativeJobHandle>

/**
 * Starts a job. `finished` runs once when it has ended, before anybody who awaits it goes on; not if it never started.
 * `attend` is asked for the job's work by whoever begins to await it: true says that the job has ended well, without a value
 * and without its callback.
 */
export const startJob = <A>(
  addon: JobControl,
  start: Start<A>,
  finished: () => void,
  attend?: undefined extends A ? (job: NativeJobHandle) => boolean : never
): Result.Result<NativeJob<A>, NativeFailure> => {
  let outcome: Result.Result<A, NativeFailure> | undefined
  const waiting = new Set<() => void>()
  const settle = (answer: NativeAnswer<A>) => {
    outcome = answer.code === "Ok" ? Result.succeed(answer.value) : Result.fail(answer)
    finished()
    for (const wake of waiting) wake()
    waiting.clear()
  }
  const started = start(settle)
  if (started.code !== "Ok") return Result.fail(started)
  const handle = started.value
  const settled = Effect.callback<Result.Result<A, NativeFailure>>((resume) => {
    const wake = () => resume(Effect.succeed(outcome!))
    if (outcome !== undefined) return wake()
    waiting.add(wake)
    return Effect.sync(() => {
      waiting.delete(wake)
    })
  })
  return Result.succeed({
    isComplete: () => outcome !== undefined,
    await: Effect.suspend(() => {
      if (outcome === undefined && attend?.(handle) === true) settle({ code: "Ok", value: undefined as A })
      return Effect.flatMap(settled, Effect.fromResult)
    }),
    cancel: Effect.suspend(() => {
      if (outcome === undefined) addon.cancelJob(handle)
      return Effect.asVoid(settled)
    }),
    movedBytes: () => {
      const answer = addon.movedBytes(handle)
      return answer.code === "Ok" ? answer.value : 0
    }
  })
}

/** Starts a job and waits for it; interruption cancels it and waits for that. */
export const runJob = <A>(addon: JobControl, start: Start<A>, finished: () => void): Effect.Effect<A, NativeFailure> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.suspend(() => {
      const started = startJob(addon, start, finished)
      if (Result.isFailure(started)) {
        finished()
        return Effect.fail(started.failure)
      }
      const job = started.success
      return Effect.onInterrupt(restore(job.await), () => job.cancel)
    })
  )

/** A pool of threads that ends with the scope. */
export const acquirePool = (addon: PoolControl, threads: number) =>
  Effect.acquireRelease(
    Effect.suspend((): Effect.Effect<NativePool, NativeFailure> => {
      const made = addon.createPool(threads)
      return made.code === "Ok" ? Effect.succeed(made.value) : Effect.fail(made)
    }),
    (pool) => Effect.sync(() => addon.closePool(pool))
  )
