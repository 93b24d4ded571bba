/**
 * How ranks learn that what they push to each other is there: they meet when each has done its own moves, or has failed to.
 *
 * Invariant: a rank takes part in one meeting per start, in order, whatever became of its moves; others never wait for a rank
 * that gave up. Meetings go through a group of their own, so that they never come between the job's collectives.
 */
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import { makeAgreement } from "./agreement.ts"
import type { DriverErrors } from "./driverErrors.ts"
import { decodeDone, encodeOutcome } from "./Publication.ts"

export interface Meeting {
  readonly isOver: () => boolean
  /** Ends when all ranks have done their moves; fails with the first failure of any. */
  readonly await: Effect.Effect<void, CopyDriverError>
}

export const makeMeetings = (group: ProcessGroupShape, backend: string, errors: DriverErrors) => {
  const reversed = Array.from({ length: group.size }, (_, rank) => group.size - 1 - rank)
  const all = Effect.cached(
    Effect.mapBoth(group.subgroup(reversed), {
      onFailure: (error) => errors.ofGroup(error, "run"),
      onSuccess: (subgroup) => makeAgreement(subgroup, backend, errors)
    })
  )
  let agreement: Effect.Success<typeof all> | undefined
  let last: Effect.Effect<unknown> = Effect.void

  /** `own` is this rank's part. `met` is called once, with whether all ranks came. */
  const meet = (
    own: Effect.Effect<void, CopyDriverError>,
    met: (isTogether: boolean) => void
  ): Effect.Effect<Meeting> =>
    Effect.gen(function* () {
      agreement ??= yield* all
      const { gather, read } = yield* Effect.orDie(agreement)
      const before = last
      const meeting = Effect.gen(function* () {
        const done = yield* Effect.result(own)
        yield* before
        const outcome = Result.isFailure(done)
          ? ({ _tag: "Failed", reason: done.failure.reason } as const)
          : ({ _tag: "Done", value: null } as const)
        const told = yield* Effect.result(gather("moved", encodeOutcome(outcome)))
        met(Result.isSuccess(told))
        // This rank's own failure says more than what the others make of it.
        yield* Effect.fromResult(done)
        const payloads = yield* Effect.fromResult(told)
        yield* Effect.fromResult(read([...payloads].reverse(), decodeDone))
      })
      const fiber = yield* Effect.forkDetach(meeting, { startImmediately: true })
      last = Effect.asVoid(Fiber.await(fiber))
      return {
        isOver: () => fiber.pollUnsafe() !== undefined,
        await: Fiber.join(fiber)
      }
    })

  return { meet }
}
