// SPDX-License-Identifier: Apache-2.0
/**
 * JSON as Python writes it: NaN and infinities stand in it as bare words, which no parser of JSON takes.
 *
 * Invariant: what is parsed and written again has the same words in the same places.
 */
import * as Result from "effect/Result"

const words = /"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g
const marked = /"\\u0000(-?Infinity|NaN)"/g

/** The value of a text; bare words become texts that begin with a zero character. Undefined for anything else. */
export const parsePythonJson = (text: string): unknown =>
  Result.getOrUndefined(
    Result.try((): unknown =>
      JSON.parse(text.replace(words, (found) => (found.startsWith('"') ? found : `"\\u0000${found}"`)))
    )
  )

/** A value of `parsePythonJson` as text again, indented by two spaces. */
export const formatPythonJson = (value: unknown): string =>
  `${JSON.stringify(value, null, 2).replace(marked, (_, word: string) => word)}\n`
