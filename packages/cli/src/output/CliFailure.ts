/**
 * How the command ends: exit code 0 when all is well, 1 after a failure, 2 after wrong usage, 130 after a signal.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import type { RankFailure } from "../job/JobSpec.ts"
import { toFailure } from "../job/JobSpec.ts"

/** Prints a failure for people on standard error, or for machines on standard output, and sets the exit code. */
export const reportFailure = (
  failures: ReadonlyArray<{ readonly rank?: number; readonly failure: RankFailure }>,
  asJson: boolean
): Effect.Effect<void> =>
  Effect.gen(function* () {
    yield* Effect.sync(() => {
      process.exitCode = failures.some(({ failure }) => failure.reason === "InvalidUsage") ? 2 : 1
    })
    if (asJson) {
      const errors = failures.map(({ rank, failure }) => ({ ...(rank === undefined ? {} : { rank }), ...failure }))
      yield* Console.log(JSON.stringify({ ok: false, errors }, null, 2))
      return
    }
    const seen = new Set<string>()
    for (const { rank, failure } of failures) {
      if (seen.has(failure.message)) continue
      seen.add(failure.message)
      yield* Console.error(`${rank === undefined ? "" : `rank ${rank}: `}${failure.message}`)
    }
  })

/** Runs a command's body; its failures become output and an exit code. */
export const withFailures = <E, R>(asJson: boolean, body: Effect.Effect<void, E, R>): Effect.Effect<void, never, R> =>
  Effect.catch(body, (error) => reportFailure([{ failure: toFailure(error) }], asJson))
