// SPDX-License-Identifier: Apache-2.0
/** Reads small files of YAML or JSON whose content a schema describes. */
import { readSmallFile } from "@tensorferry/model/checkpoint/FileAccess"
import type { ModelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** Aliases of YAML can make a small file enormous; rules and layouts need few. */
const maxAliasCount = 100
/** The parser needs memory of many times the text. */
const maxByteLength = 1_000_000

/**
 * Fails with what `invalid` makes of the reason, and of a remedy where the file cannot be read at all; unknown keys are
 * refused.
 */
export const readYamlFile = <A>(
  file: string,
  schema: Schema.Codec<A, unknown>,
  invalid: (detail: string, remedy?: string) => ModelError
): Effect.Effect<A, ModelError> =>
  Effect.gen(function* () {
    const bytes = yield* Effect.mapError(readSmallFile(file), ({ reason }) => invalid(reason.detail, reason.remedy))
    if (bytes.length > maxByteLength)
      return yield* invalid(`It has ${bytes.length} bytes; at most ${maxByteLength} are read.`)
    // Loaded only here: most commands need no YAML, and the parser takes long to load.
    const { isScalar, parseDocument, visit } = yield* Effect.promise(() => import("yaml"))
    const parsed = yield* Effect.try({
      try: (): Result.Result<unknown, string> => {
        const document = parseDocument(new TextDecoder().decode(bytes), { logLevel: "error" })
        // A key that is itself a map is turned into text, which takes time exponential in its depth.
        let isPlain = true
        visit(document, {
          Pair: (_, { key }) => {
            isPlain = isScalar(key)
            return isPlain ? undefined : visit.BREAK
          }
        })
        const fault = document.errors[0]?.message ?? (isPlain ? undefined : "A key is not a plain text.")
        return fault === undefined ? Result.succeed(document.toJS({ maxAliasCount })) : Result.fail(fault)
      },
      catch: (cause) => invalid(cause instanceof Error ? cause.message : String(cause))
    })
    if (Result.isFailure(parsed)) return yield* invalid(parsed.failure)
    const decoded = Schema.decodeUnknownResult(schema, { onExcessProperty: "error" })(parsed.success)
    return Result.isSuccess(decoded) ? decoded.success : yield* invalid(decoded.failure.message)
  })
