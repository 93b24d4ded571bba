// SPDX-License-Identifier: Apache-2.0
/**
 * A rank at rest answers others that agree on a run which it has behind it, while its program does something else.
 *
 * Invariant: a rank either answers or runs; a run waits until the answer is given.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Scope } from "effect/Scope"
import type { CopyParts } from "./parts.ts"
import type { CopyRunner } from "./run.ts"

export interface Answers {
  /** Answers whoever waits, unless a run is in progress. */
  readonly look: Effect.Effect<void>
  /** Waits for an answer that is being given. */
  readonly ended: Effect.Effect<void>
}

export const makeAnswers = (
  { signals, scope }: CopyParts,
  { machine, isAwaited, answerOthers }: CopyRunner
): Effect.Effect<Answers, never, Scope> =>
  Effect.gen(function* () {
    let answering: Fiber.Fiber<unknown, unknown> | undefined
    const mustLook = () => answering === undefined && machine.state().phase._tag === "Idle" && isAwaited()

    /** A failure is the failure of those whose run it is; what it means for this rank, its next run finds out. */
    const answer = Effect.gen(function* () {
      const { leaving } = machine.state()
      if (leaving !== undefined) yield* Fiber.await(leaving)
      if (!isAwaited() || machine.state().phase._tag !== "Idle") return
      yield* machine.begin
      yield* Effect.flatMap(machine.agree(answerOthers), Fiber.await)
      yield* machine.on({ _tag: "Ended" })
    })

    // A run looks when it has ended, where nothing may interrupt it: what begins there must not inherit that.
    const look: Effect.Effect<void> = Effect.suspend(() => {
      if (!mustLook()) return Effect.void
      return Effect.flatMap(Effect.forkIn(Effect.interruptible(Effect.ignore(answer)), scope), (fiber) => {
        answering = fiber
        fiber.addObserver(() => {
          answering = undefined
          run(look)
        })
        return Effect.void
      })
    })
    const context = yield* Effect.context<never>()
    const run = (effect: Effect.Effect<void>) => void Effect.runForkWith(context)(effect)

    yield* Effect.acquireRelease(
      Effect.sync(() =>
        signals.watch(() => {
          if (mustLook()) run(look)
        })
      ),
      (stop) => Effect.sync(stop)
    )
    const ended: Effect.Effect<void> = Effect.suspend(() =>
      answering === undefined ? Effect.void : Effect.flatMap(Fiber.await(answering), () => ended)
    )
    return { look, ended }
  })
