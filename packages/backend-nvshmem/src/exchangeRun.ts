// SPDX-License-Identifier: Apache-2.0
/**
 * One start of a prepared exchange, from this PE's point of view.
 *
 * Invariant: a run that this PE gives up, or in which a peer's process ends, leaves the member in need of a reset, so that
 * no later run starts before all ranks have prepared again. Where a peer's process has ended, that is the error of the run.
 */
import type { CopyDriverError, InFlight } from "@tensorferry/core/service/CopyDriver"
import { startTransfer } from "@tensorferry/gpu/ProgramTransfer"
import type { RunTimes } from "@tensorferry/gpu/RunTimes"
import { firstEnded, processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import type { ProgramEntry } from "@tensorferry/native/driver/ProgramEntries"
import { nothingToMove } from "@tensorferry/native/driver/Transfers"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { PreparedExchange } from "./compileExchange.ts"
import type { DriverParts } from "./driverParts.ts"
import { markUnusable } from "./LibraryState.ts"
import type { Member, Membership } from "./Membership.ts"

/** What the driver keeps beside a program. */
export interface KeptExchange extends PreparedExchange {
  readonly member: Member
}

/** Between two looks whether the peers' processes are alive. */
const watchPeriod = Duration.millis(100)

/** Begins runs; `finished` gets the times of each that ended well. */
export const makeRuns = (parts: DriverParts, members: Membership, finished: (times: RunTimes) => void) => {
  const { addon, gpu, errors } = parts

  const peerGone = (peer: number): CopyDriverError =>
    errors.fail(
      "PeerGone",
      `The process of PE ${peer} has ended, and NVSHMEM of this process cannot be used without it.`,
      { op: "run", peer, scope: "service" }
    )

  const markGone = (peer: number): Effect.Effect<void> =>
    markUnusable(gpu.ordinal, `The process of PE ${peer} ended during a run.`)

  /** Why a program cannot start. */
  const startFault = ({ isUsable, member }: ProgramEntry<KeptExchange>): CopyDriverError | undefined => {
    const op = "start"
    if (!isUsable) {
      return errors.fail("InvalidProgram", "The program was closed, or its memory was freed.", { op })
    }
    if (member !== members.member() || member.mustReset) {
      return errors.fail("Broken", "An earlier run failed; prepare again.", { op, scope: "service" })
    }
    return undefined
  }

  /** What a failed run was due to. */
  const failureOf = (failure: NativeFailure): CopyDriverError =>
    failure.code === "PeerGone" && failure.item >= 0
      ? errors.fail("PeerGone", failure.detail, { op: "run", peer: failure.item })
      : errors.ofNative(failure, "run")

  /** Stops the run and fails it as soon as the process of a peer has ended. */
  const watched = ({ member, processes }: KeptExchange, run: InFlight): Effect.Effect<InFlight> =>
    Effect.gen(function* () {
      const firstGone = () => firstEnded(processIdentity(), processes)
      const death = Deferred.makeUnsafe<never, CopyDriverError>()
      const watch = Effect.gen(function* () {
        while (!(yield* run.isComplete)) {
          yield* Effect.sleep(watchPeriod)
          const gone = (yield* run.isComplete) ? undefined : firstGone()
          if (gone === undefined) continue
          member.mustReset = true
          yield* markGone(gone)
          yield* run.cancel
          yield* Deferred.fail(death, peerGone(gone))
        }
      })
      const watching = yield* Effect.forkDetach(watch)
      const wait = Effect.catch(run.await, (error) => {
        // What stopped the run says more than that it was stopped.
        const gone = firstGone()
        return gone === undefined ? Effect.fail(error) : Effect.andThen(markGone(gone), Effect.fail(peerGone(gone)))
      })
      return {
        ...run,
        await: Effect.ensuring(Effect.raceFirst(wait, Deferred.await(death)), Fiber.interrupt(watching))
      }
    })

  return (entry: ProgramEntry<KeptExchange>): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.gen(function* () {
      const { member, program } = entry
      const fault = startFault(entry)
      member.runs += 1
      addon.setRun(member.exchange, member.runs)
      if (fault !== undefined) {
        if (!member.mustReset && entry.processes.size > 0) yield* members.decline(member)
        member.mustReset = true
        return yield* fault
      }
      if (program === undefined) return nothingToMove
      const mustReset = () => {
        member.mustReset = true
      }
      const failed = (failure: NativeFailure) => {
        mustReset()
        return failureOf(failure)
      }
      const run = yield* Effect.fromResult(startTransfer(entry, { failed, finished, stopping: mustReset }))
      return yield* watched(entry, run)
    })
}
