// SPDX-License-Identifier: Apache-2.0
/** What tests of this backend need of the machine. */
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"
import { openLibrary } from "../src/library.ts"

/** Why there is no UCX to test over; undefined where there is one. */
export const noUcx: string | undefined = await Effect.runPromise(
  Effect.match(
    Effect.flatMap(loadAddon, (addon) => openLibrary(addon, {})),
    {
      onFailure: ({ reason }) => `${reason.detail} (Debian package libucx0)`,
      onSuccess: () => undefined
    }
  )
)
