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
        detail: `The job that this rank was told cannot be read: ${message}.`,
        remedy: "Ranks are started by the command of the same release; see that no two releases are installed."
      })
    )
  )
