// SPDX-License-Identifier: Apache-2.0
/**
 * The first message that a rank's program gets over its parent's channel: what it is to do. One that cannot be read ends
 * the rank with an error, since nothing else would come.
 */

import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

export const receiveJob = <A, I>(schema: Schema.Codec<A, I>): Effect.Effect<A, ModelError> =>
  Effect.callback<unknown>((resume) => {
    const receive = (message: unknown) => resume(Effect.succeed(message))
    process.once("message", receive)
    return Effect.sync(() => process.off("message", receive))
  }).pipe(
    Effect.flatMap(Schema.decodeUnknownEffect(schema)),
    Effect.catchTag("SchemaError", ({ message }) =>
      modelError("InvalidJob", {
        op: "start a rank",
        detail: `The job description that this rank got cannot be read: ${message}.`,
        remedy: "Make sure that only one release of tensorferry is installed."
      })
    )
  )
