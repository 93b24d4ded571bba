/**
 * The options that users write for this backend. Unknown names are refused: an option that does nothing is an error.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SchemaTransformation from "effect/SchemaTransformation"
import { pathNames } from "./reach.ts"

const Fields = Schema.Struct({
  threads: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 64 })).annotate({ description: "Threads that copy." })
  ),
  forbid: Schema.optionalKey(
    Schema.Array(Schema.Literals(pathNames)).annotate({
      description: "Ways to the memory of other processes that must not be used."
    })
  ),
  deferred: Schema.optionalKey(
    Schema.Boolean.annotate({
      description: "Replay copies are made by the consumer's wait instead of by the submission.",
      default: false
    })
  )
})

export type TorchCopyOptions = typeof Fields.Type

export const TorchCopyOptions = Schema.Unknown.pipe(
  Schema.decodeTo(
    Schema.toType(Fields),
    SchemaTransformation.transformEffect({
      decode: (input: unknown) =>
        Effect.mapError(
          Schema.decodeUnknownEffect(Fields, { onExcessProperty: "error" })(input),
          (error) => error.issue
        ),
      encode: (options: TorchCopyOptions) => Effect.succeed<unknown>(options)
    })
  )
)
