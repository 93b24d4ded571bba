// SPDX-License-Identifier: Apache-2.0
/** `--options`: what a user writes for a backend, as JSON. What it means is the backend's business. */

import { modelError } from "@tensorferry/model/ModelError"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"

export const backendOptions = Flag.String("options").pipe(
  Flag.withDescription('The backend\'s own options as JSON, as {"threads": 2}'),
  Flag.optional
)

const parse = Schema.decodeUnknownEffect(Schema.fromJsonString(Schema.Json))

/** No options are `{}`. */
export const readBackendOptions = (given: Option.Option<string>) =>
  Option.match(given, {
    onNone: () => Effect.succeed<Schema.Json>({}),
    onSome: (text) =>
      Effect.mapError(parse(text), () =>
        modelError("InvalidUsage", {
          detail: `--options is not JSON: ${text.slice(0, 80)}`,
          remedy: "Write an object in quotes, as --options '{\"threads\": 2}'."
        })
      )
  })
