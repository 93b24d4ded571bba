// SPDX-License-Identifier: Apache-2.0
/** A rank's end of the channel to the process that started it. A closed channel means that nobody listens any more. */
import * as Effect from "effect/Effect"

/** Ends when the message has left. */
export const sendToParent = (message: unknown): Effect.Effect<void> =>
  Effect.callback((resume) => {
    if (process.send === undefined || !process.connected) return resume(Effect.void)
    process.send(message, undefined, undefined, () => resume(Effect.void))
  })

/** Ends when the channel closes: the parent's process is gone, so nobody waits for this rank. */
export const parentGone = Effect.callback<void>((resume) => {
  process.once("disconnect", () => resume(Effect.void))
  if (!process.connected) resume(Effect.void)
})
