// SPDX-License-Identifier: Apache-2.0
/**
 * Options that users write, as a schema of their fields: an option that does nothing is an error.
 *
 * Invariant: whoever decodes with the schema, and however they ask, unknown names are refused with their path and every
 * fault of the options is in the failure.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SchemaTransformation from "effect/SchemaTransformation"

/** The schema of a backend's options: what `fields` takes, and nothing beside it. */
export const strictOptions = <Options, Encoded>(fields: Schema.Codec<Options, Encoded>) => {
  const decode = Schema.decodeUnknownEffect(fields, { onExcessProperty: "error", errors: "all" })
  return Schema.Unknown.pipe(
    Schema.decodeTo(
      Schema.toType(fields),
      SchemaTransformation.transformEffect({
        decode: (input: unknown) => Effect.mapError(decode(input), (error) => error.issue),
        encode: (options: Options) => Effect.succeed<unknown>(options)
      })
    )
  )
}
