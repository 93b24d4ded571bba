// SPDX-License-Identifier: Apache-2.0
/**
 * The options that users write for this backend. Unknown names are refused: an option that does nothing is an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import * as Schema from "effect/Schema"
import { pathNames } from "./memoryPath.ts"

const Fields = Schema.Struct({
  threads: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 64 })).annotate({ description: "Threads that copy." })
  ),
  forbid: Schema.optionalKey(
    Schema.Array(Schema.Literals(pathNames)).annotate({
      description: "Paths to the memory of other processes that the driver must not use."
    })
  ),
  deferred: Schema.optionalKey(
    Schema.Boolean.annotate({
      description: "Makes replay copies when the consumer waits instead of when they are submitted.",
      default: false
    })
  )
})

/** Options of the torch-copy backend, checked: the values as a type, the schema as a value. */
export type TorchCopyOptions = typeof Fields.Type

export const TorchCopyOptions = strictOptions(Fields)
