// SPDX-License-Identifier: Apache-2.0
/**
 * The options that users write for this backend. Unknown names are refused: an option that does nothing is an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import * as Schema from "effect/Schema"
import { ways } from "./Addon.ts"

const Fields = Schema.Struct({
  library: Schema.optionalKey(
    Schema.NonEmptyString.annotate({ description: "Path of libucp. The system's own is found without it." })
  ),
  transports: Schema.optionalKey(
    Schema.NonEmptyString.annotate({ description: "Transports that UCX may use, as in UCX_TLS." })
  ),
  devices: Schema.optionalKey(
    Schema.NonEmptyString.annotate({
      description: "Network devices that UCX may use, as in UCX_NET_DEVICES. Loopback where there is no token."
    })
  ),
  interfaces: Schema.optionalKey(
    Schema.NonEmptyArray(Schema.NonEmptyString).annotate({
      description:
        "Network interfaces whose devices UCX may use, by name. TENSORFERRY_INTERFACES where it is not given."
    })
  ),
  transfer: Schema.optionalKey(
    Schema.Literals(ways).annotate({
      description:
        "Whether dense parts are written by remote keys or sent: written where hardware does so, else sent (auto) or refused (put). By emulated-put UCX writes everywhere, which is for tests: it ends a process whose peer dies.",
      default: "auto"
    })
  ),
  stagingBytes: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 2 ** 20, maximum: 2 ** 34 })).annotate({
      description: "Registered memory through which scattered parts pass.",
      default: 2 ** 25
    })
  ),
  token: Schema.optionalKey(
    Schema.NonEmptyString.annotate({
      description: "Secret that all ranks share. TENSORFERRY_TOKEN where it is not given."
    })
  )
})

/** Options of the ucx backend, checked: the values as a type, the schema as a value. */
export type UcxOptions = typeof Fields.Type

export const UcxOptions = strictOptions(Fields)
