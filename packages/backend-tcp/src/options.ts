// SPDX-License-Identifier: Apache-2.0
/**
 * The options that users write for this backend. Unknown names are refused: an option that does nothing is an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import * as Schema from "effect/Schema"

const between = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

const Fields = Schema.Struct({
  lanes: Schema.optionalKey(
    between(1, 64).annotate({
      description: "Most connections to one peer. The driver uses as many as pay.",
      default: 64
    })
  ),
  threads: Schema.optionalKey(
    between(1, 16).annotate({ description: "Threads that read and write connections. Half the processors, at most 4." })
  ),
  interfaces: Schema.optionalKey(
    Schema.NonEmptyArray(Schema.NonEmptyString).annotate({
      description:
        "Network interfaces to use, by name. TENSORFERRY_INTERFACES where it is not given, else all; without a token loopback."
    })
  ),
  addresses: Schema.optionalKey(
    Schema.NonEmptyArray(Schema.NonEmptyString).annotate({
      description: "Addresses of this host to use, instead of those of interfaces."
    })
  ),
  port: Schema.optionalKey(
    between(0, 65_535).annotate({ description: "Port to listen at, the same at all addresses.", default: 0 })
  ),
  token: Schema.optionalKey(
    Schema.NonEmptyString.annotate({
      description: "Secret that all ranks share. TENSORFERRY_TOKEN where it is not given."
    })
  )
})

/** Options of the tcp backend, checked: the values as a type, the schema as a value. */
export type TcpOptions = typeof Fields.Type

export const TcpOptions = strictOptions(Fields)
