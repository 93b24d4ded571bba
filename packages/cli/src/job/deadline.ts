// SPDX-License-Identifier: Apache-2.0
/**
 * How long a rank may go without progress: what the user says by flag or environment, checked. Wrong text is wrong usage.
 *
 * Invariant: whole milliseconds between a tenth of a second and a day, which every message and timer can carry.
 */

import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Config from "effect/Config"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"

export const leastSeconds = 0.1
export const mostSeconds = 86_400
const defaultMillis = 60_000

const variable = "TENSORFERRY_DEADLINE"

/** Seconds, or a text such as "2 minutes", in milliseconds. */
export const parseDeadline = (text: string): Result.Result<number, ModelError> => {
  const parsed = /^\d+(\.\d+)?$/.test(text)
    ? Option.some(Duration.seconds(Number(text)))
    : Duration.fromInput(text as Duration.Input)
  const millis = Option.match(parsed, { onNone: () => Number.NaN, onSome: Duration.toMillis })
  return millis >= leastSeconds * 1000 && millis <= mostSeconds * 1000
    ? Result.succeed(Math.round(millis))
    : Result.fail(
        modelError("InvalidUsage", {
          detail: `${variable} is "${text}".`,
          remedy: `Set it to seconds from ${leastSeconds} to ${mostSeconds}, such as 90, or to a text such as "2 minutes".`
        })
      )
}

/** Milliseconds: the flag's seconds, else the environment's, else a minute. A wrong variable fails in either case. */
export const chooseDeadline = Effect.fnUntraced(function* (
  flagSeconds: Option.Option<number>
): Effect.fn.Return<number, ModelError> {
  const text = yield* Effect.orElseSucceed(Config.option(Config.String(variable)), () => Option.none<string>())
  const stated = Option.filter(text, (value) => value !== "")
  const environment = Option.isNone(stated) ? defaultMillis : yield* Effect.fromResult(parseDeadline(stated.value))
  return Option.match(flagSeconds, { onNone: () => environment, onSome: (seconds) => Math.round(seconds * 1000) })
})
