// SPDX-License-Identifier: Apache-2.0
/** A bound for code of other authors, which may never end and may refuse to be interrupted. */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"

/**
 * What `call` gives, or `orElse` where it has not ended by the limit, or where the wait is interrupted. The call is
 * interrupted then and left to itself: nobody waits for it, also where the caller cannot be interrupted.
 */
export const endsWithin = <A, E, R, E2>(
  call: Effect.Effect<A, E, R>,
  limit: Duration.Input,
  orElse: Effect.Effect<A, E2>
): Effect.Effect<A, E | E2, R> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const fiber = yield* Effect.forkDetach(Effect.interruptible(call), { startImmediately: true })
      const ended = fiber.pollUnsafe()
      if (ended !== undefined) return yield* ended
      const over = yield* Deferred.make<A, E | E2>()
      fiber.addObserver((exit) => Deferred.doneUnsafe(over, exit))
      const expiry = Effect.andThen(Effect.sleep(limit), Deferred.complete(over, orElse))
      const timer = yield* Effect.forkDetach(Effect.interruptible(expiry))
      const leave = Effect.forkDetach(Fiber.interruptAll([timer, fiber]))
      return yield* Effect.onExit(restore(Deferred.await(over)), () => Effect.asVoid(leave))
    })
  )
