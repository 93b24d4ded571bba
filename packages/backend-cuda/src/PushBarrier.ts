// SPDX-License-Identifier: Apache-2.0
/**
 * How ranks push to each other: they meet before anybody does, so that each may still decline, and again when each has done
 * its own moves or has failed to, so that everybody knows what is there.
 *
 * Invariants: a rank takes part in the meetings of every start, in order, whatever becomes of it, so that others never wait
 * for a rank that gave up. Nobody pushes to a rank that gave up before all had come. Meetings go through a group of their
 * own and never come between the job's collectives.
 */
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { decodeDone, encodeOutcome } from "@tensorferry/native/driver/Outcome"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"

/** One rank's part in a start. */
export interface Part {
  /** Why this rank no longer takes part; asked when all ranks are there. */
  readonly declined: () => CopyDriverError | undefined
  /** This rank's moves; begun only where no rank has declined. */
  readonly moves: Effect.Effect<void, CopyDriverError>
  /** From now on others may write to this rank's memory. */
  readonly committed: () => void
  /** Called once after `committed`, with whether all ranks have reported that their moves are over. */
  readonly met: (isTogether: boolean) => void
}

/** The meeting of all ranks over one start. */
export interface Meeting {
  readonly isOver: () => boolean
  /** Ends when all ranks have done their moves; fails with the first failure of any. */
  readonly await: Effect.Effect<void, CopyDriverError>
}

/** The meetings of a driver's ranks. */
export const makePushBarrier = (group: ProcessGroupShape, errors: DriverErrors) => {
  const reversed = Array.from({ length: group.size }, (_, rank) => group.size - 1 - rank)
  const all = Effect.cached(
    Effect.mapBoth(group.subgroup(reversed), {
      onFailure: (error) => errors.ofGroup(error, "run"),
      onSuccess: (subgroup) => makeDriverAgreement(subgroup, errors, "prepare")
    })
  )
  let agreement: Effect.Success<typeof all> | undefined
  let last: Effect.Effect<unknown> = Effect.void

  const meet = (part: Part): Effect.Effect<Meeting> =>
    Effect.gen(function* () {
      agreement ??= yield* all
      const { gather, read } = yield* Effect.orDie(agreement)
      const report = (label: string, own: Result.Result<void, CopyDriverError>) => {
        const outcome = Result.isFailure(own)
          ? ({ _tag: "Failed", reason: own.failure.reason } as const)
          : ({ _tag: "Done", value: null } as const)
        return gather(label, encodeOutcome(outcome))
      }
      /** This rank's own failure says more than what the others make of it. */
      const judge = (own: Result.Result<void, CopyDriverError>, reports: ReadonlyArray<Uint8Array>) =>
        Effect.andThen(Effect.fromResult(own), Effect.fromResult(read([...reports].reverse(), decodeDone)))
      const before = last
      const meeting = Effect.gen(function* () {
        yield* before
        yield* gather("here", new Uint8Array())
        const declined = part.declined()
        const own = declined === undefined ? Result.succeed(undefined) : Result.fail(declined)
        if (declined === undefined) part.committed()
        const wanted = yield* Effect.result(report("wanted", own))
        if (Result.isFailure(wanted)) {
          if (declined === undefined) part.met(false)
          return yield* wanted.failure
        }
        const agreed = yield* Effect.result(judge(own, wanted.success))
        if (Result.isFailure(agreed)) {
          if (declined === undefined) part.met(true)
          return yield* agreed.failure
        }
        const done = yield* Effect.result(part.moves)
        const ended = yield* Effect.result(report("moved", done))
        part.met(Result.isSuccess(ended))
        yield* Effect.fromResult(done)
        yield* judge(done, yield* Effect.fromResult(ended))
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

export type PushBarrier = ReturnType<typeof makePushBarrier>
