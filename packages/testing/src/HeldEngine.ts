// SPDX-License-Identifier: Apache-2.0
/**
 * An engine whose copies can be held back and made to fail: for replay backends that copy by an engine.
 *
 * Invariants: while nothing is held, copies are the engine's own. What is held is done when the last hold ends, in a seeded
 * order; what was interrupted before is never done.
 */

import type { ReplayHooks } from "@tensorferry/core/service/ReplayTesting"
import { type TensorEngineShape, tensorError } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import { delayedEngine, makeDelays } from "./DelayedEngine.ts"

/** The hooks of a replay subject, and the engines that they act on. */
export interface HeldCopies extends Required<Pick<ReplayHooks, "hold" | "failCopy">> {
  /** The engine under the holds; any number of engines may be. */
  readonly wrap: (engine: TensorEngineShape) => TensorEngineShape
}

/** Hooks under which nothing is held yet; `seed` decides the order in which held copies are done. */
export const makeHeldCopies = (seed = 1): HeldCopies => {
  const delays = makeDelays(seed)
  let holds = 0
  let isFailing = false
  return {
    wrap: (engine) => {
      const delayed = delayedEngine(engine, delays)
      return {
        ...engine,
        copy: (moves) =>
          Effect.suspend(() => {
            if (!isFailing) return holds > 0 ? delayed.copy(moves) : engine.copy(moves)
            isFailing = false
            return Effect.fail(
              tensorError("DeviceFailure", { op: "copy", detail: "The test has it fail.", remedy: "None." })
            )
          })
      }
    },
    hold: Effect.acquireRelease(
      Effect.sync(() => {
        holds += 1
      }),
      () =>
        Effect.suspend(() => {
          holds -= 1
          return holds > 0 ? Effect.void : Effect.repeat(delays.releaseOne, { while: (released) => released })
        })
    ),
    failCopy: Effect.sync(() => {
      isFailing = true
    })
  }
}
