// SPDX-License-Identifier: Apache-2.0
/**
 * How the command ends: exit code 0 when all is well, 1 after a failure, 2 after wrong usage, 130 after a signal.
 *
 * Usage is wrong where arguments cannot be understood, say too little, contradict each other, or are options that a backend
 * does not know. What is understood and cannot be done with this model, file or machine is a failure.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { RankFailure } from "../job/JobSpec.ts"
import { toFailure } from "../job/JobSpec.ts"
import { inOneLine, print, printEither, printError } from "../text/terminal.ts"
import { quietly } from "./quiet.ts"

const usageReasons = new Set(["InvalidUsage", "InvalidOptions"])

/** Prints a failure for people on standard error, or for machines on standard output, and sets the exit code. */
export const reportFailure = (
  failures: ReadonlyArray<{ readonly rank?: number; readonly failure: RankFailure }>,
  asJson: boolean
): Effect.Effect<void> =>
  Effect.gen(function* () {
    yield* Effect.sync(() => {
      process.exitCode = failures.some(({ failure }) => usageReasons.has(failure.reason)) ? 2 : 1
    })
    if (asJson) {
      const errors = failures.map(({ rank, failure }) => ({ ...(rank === undefined ? {} : { rank }), ...failure }))
      yield* print(JSON.stringify({ ok: false, errors }, null, 2))
      return
    }
    const seen = new Set<string>()
    for (const { rank, failure } of failures) {
      if (seen.has(failure.message)) continue
      seen.add(failure.message)
      yield* printError(`${rank === undefined ? "" : `rank ${rank}: `}${inOneLine(failure.message)}`)
    }
  })

/** Flags that say how a command speaks; `quiet` is of those that wait. */
export interface SpeechFlags {
  readonly json: boolean
  readonly quiet?: boolean
}

/** Runs a command's body, quietly where it is to be; its failures become output and an exit code. */
export const withFailures = <E, R>(
  { json, quiet = false }: SpeechFlags,
  body: Effect.Effect<void, E, R>
): Effect.Effect<void, never, R> =>
  Effect.catch(quietly(quiet, body), (error) => reportFailure([{ failure: toFailure(error) }], json))

/**
 * Writes files that a run was asked to leave behind, and prints what it found out. Where they cannot be written the
 * figures are printed all the same, and the command fails: nobody wants to run it again for them.
 */
export const printAround = <E, R>(
  asJson: boolean,
  write: Effect.Effect<void, E, R>,
  found: { readonly document: { readonly [name: string]: unknown }; readonly text: string }
): Effect.Effect<boolean, never, R> =>
  Effect.gen(function* () {
    const written = yield* Effect.result(write)
    const isWritten = Result.isSuccess(written)
    if (isWritten || !asJson) {
      yield* printEither(
        asJson,
        () => found.document,
        () => found.text
      )
      if (!isWritten) yield* reportFailure([{ failure: toFailure(written.failure) }], asJson)
      return isWritten
    }
    yield* Effect.sync(() => {
      process.exitCode = 1
    })
    const document = { ...found.document, ok: false, errors: [toFailure(written.failure)] }
    yield* print(JSON.stringify(document, null, 2))
    return false
  })
