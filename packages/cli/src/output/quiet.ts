// SPDX-License-Identifier: Apache-2.0
/**
 * `--quiet`, and where words of waiting go.
 *
 * Who waits long logs it at level Info, in this process or in a rank's. So being quiet is a least level of logs, and a
 * command that draws a line of progress only has to keep its logs clear of that line.
 */
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as LogLevel from "effect/LogLevel"
import * as References from "effect/References"
import { plainLine, printError } from "../text/terminal.ts"

/** Of every command that waits for other processes or works long. */
export const quiet = Flag.Boolean("quiet").pipe(
  Flag.withDescription(
    "Say nothing on standard error but notes, warnings and errors: neither how far the work is nor, after three seconds, for whom it waits"
  ),
  Flag.withDefault(false)
)

const quietLevel: LogLevel.LogLevel = "Warn"

/** Runs a body, without words of waiting where it is to be quiet; `--log-level error` says even less. */
export const quietly = <A, E, R>(isQuiet: boolean, body: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  isQuiet
    ? Effect.updateService(body, References.MinimumLogLevel, (level) =>
        LogLevel.isGreaterThan(level, quietLevel) ? level : quietLevel
      )
    : body

/** Writes logs as plain lines on standard error, each after the line of progress has been taken away. */
export const logsBeside = (bar: { readonly clear: Effect.Effect<void> }) =>
  Logger.layer([
    Logger.make(({ fiber, message }) => {
      const text = (Array.isArray(message) ? message : [message]).map(String).join(" ")
      Effect.runSyncWith(fiber.context)(Effect.andThen(bar.clear, printError(plainLine(text))))
    })
  ])
