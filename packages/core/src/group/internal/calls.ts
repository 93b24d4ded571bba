// SPDX-License-Identifier: Apache-2.0
/**
 * The calls of one process that wait for a delivery, by call number.
 *
 * Invariant: a call is settled at most once and forgotten when its wait ends, however it ends; deliveries for forgotten
 * calls are ignored.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"

type Payloads = ReadonlyArray<Uint8Array>
type Outcome = Result.Result<Payloads, ProcessGroupError>

interface Waiting {
  readonly label: string
  readonly resume: (outcome: Effect.Effect<Payloads, ProcessGroupError>) => void
}

export interface Calls {
  readonly isEmpty: () => boolean
  /** Makes a call, which may settle it at once, and waits for its end. */
  readonly make: (label: string, start: (call: number) => void) => Effect.Effect<Payloads, ProcessGroupError>
  /** Whoever waits goes on before this returns. */
  readonly settle: (call: number, outcome: Outcome) => void
  readonly failAll: (failure: (label: string) => ProcessGroupError) => void
}

export const makeCalls = (): Calls => {
  const waiting = new Map<number, Waiting>()
  let last = 0

  const settle = (call: number, outcome: Outcome): void => {
    const entry = waiting.get(call)
    if (entry === undefined) return
    waiting.delete(call)
    entry.resume(Result.isSuccess(outcome) ? Effect.succeed(outcome.success) : Effect.fail(outcome.failure))
  }

  return {
    isEmpty: () => waiting.size === 0,
    make: (label, start) =>
      Effect.callback((resume) => {
        // Numbers wrap as they do on the wire; four billion calls never wait at once.
        last = (last + 1) >>> 0
        const call = last
        waiting.set(call, { label, resume })
        start(call)
        return Effect.sync(() => waiting.delete(call))
      }),
    settle,
    failAll: (failure) => {
      // A copy: whoever is woken may make further calls, which fail by themselves.
      for (const [call, { label }] of [...waiting]) settle(call, Result.fail(failure(label)))
    }
  }
}
