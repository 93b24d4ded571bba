/**
 * The options that users write for this backend. Unknown names are refused: an option that does nothing is an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import * as Schema from "effect/Schema"
import { pathNames } from "./memoryPath.ts"

const Fields = Schema.Struct({
  threads: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 64 }))),
  forbid: Schema.optionalKey(Schema.Array(Schema.Literals(pathNames))),
  /** Replay copies are made by the consumer's wait instead of by the submission. */
  deferred: Schema.optionalKey(Schema.Boolean)
})

export type TorchCopyOptions = typeof Fields.Type

export const TorchCopyOptions = strictOptions(Fields)
