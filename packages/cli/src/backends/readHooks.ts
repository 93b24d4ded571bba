// SPDX-License-Identifier: Apache-2.0
/** A module that stands in for the `replayTesting` of a descriptor, given to the kit by name. */
import { fileURLToPath } from "node:url"
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"

type ReplayTesting = NonNullable<BackendDescriptor["replayTesting"]>

const isReplayTesting = (value: unknown): value is ReplayTesting => typeof value === "function"

export const readHooks = (url: string): Effect.Effect<ReplayTesting, ModelError> => {
  const refused = (detail: string) =>
    modelError("InvalidUsage", {
      file: fileURLToPath(url),
      detail,
      remedy: "Export a function replayTesting, of the type that descriptors have."
    })
  return Effect.tryPromise({
    try: (): Promise<{ readonly replayTesting?: unknown }> => import(url),
    catch: (cause) => refused(`It cannot be imported: ${String(cause)}.`)
  }).pipe(
    Effect.flatMap(({ replayTesting }) =>
      isReplayTesting(replayTesting) ? Effect.succeed(replayTesting) : refused("It exports no replayTesting.")
    )
  )
}
