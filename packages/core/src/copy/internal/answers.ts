// SPDX-License-Identifier: Apache-2.0
/**
 * A rank at rest answers others that agree on a run which it has behind it, while its program does something else, and
 * stays until nobody needs it any more: one that repeats alone may be done long before the others.
 *
 * Invariant: a rank either answers or runs; a run waits until the answer is given.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Scope } from "effect/Scope"
import { withinRunningTime } from "../../service/RunningTime.ts"
import type { CopyParts } from "./parts.ts"
import type { CopyRunner } from "./run.ts"

export interface Answers {
  /** Answers whoever waits, unless a run is in progress. */
  readonly look: Effect.Effect<void>
  /** Waits for an answer that is being given. */
  readonly ended: Effect.Effect<void>
  /** Waits until all others have the last run behind them as well, or leave too; at most for the group's deadline. */
  readonly leave: Effect.Effect<void>
}

export const makeAnswers = (
  { group, signals, scope }: CopyParts,
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
      const { phase, place } = machine.state()
      // In the middle of anything, the last run may be that.
      const closing = signals.takeClosing(phase._tag === "Idle" ? place.run : place.run - 1)
      const told = Effect.forEach(closing, ([rank, run]) => signals.tellPeers("Behind", [rank], run), { discard: true })
      if (!mustLook()) return told
      return Effect.flatMap(Effect.forkIn(Effect.interruptible(Effect.ignore(answer)), scope), (fiber) => {
        answering = fiber
        fiber.addObserver(() => {
          answering = undefined
          run(look)
        })
        return told
      })
    })
    const context = yield* Effect.context<never>()
    const run = (effect: Effect.Effect<void>) => void Effect.runForkWith(context)(effect)

    yield* Effect.acquireRelease(
      Effect.sync(() =>
        signals.watch(() => {
          if (mustLook() || signals.isAsked()) run(look)
        })
      ),
      (stop) => Effect.sync(stop)
    )
    const ended: Effect.Effect<void> = Effect.suspend(() =>
      answering === undefined ? Effect.void : Effect.flatMap(Fiber.await(answering), () => ended)
    )
    const leave = Effect.suspend(() => {
      const { place, known } = machine.state()
      const { run } = place
      const stay = withinRunningTime(
        signals.until(() => signals.isUnneeded(run) || undefined),
        group.deadline
      )
      // What failed is known to all.
      return Effect.andThen(signals.close(run), known === undefined ? Effect.void : stay)
    })
    return { look, ended, leave }
  })
