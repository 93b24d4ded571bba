// SPDX-License-Identifier: Apache-2.0
/**
 * Lets programs use the weights of a member while it may serve, and says when none is left. A program that still runs when
 * the member may serve no longer is interrupted.
 */
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { type FleetError, fleetError } from "../FleetError.ts"
import type { Manifest } from "../version/Manifest.ts"
import { canServe, isWhole, type MemberState } from "../version/MemberState.ts"

/** Of the clock by which members count. */
export const seconds = Effect.map(monotonicMillis, (millis) => millis / 1000)

const notServing = (member: MemberState, now: number): FleetError => {
  const { fleet } = member
  const isMember = fleet?.members.some(({ id }) => id === member.self.id) ?? false
  const why =
    member.live === null
      ? `It has no version${member.failure === "" ? " yet" : `: ${member.failure}`}.`
      : member.pause !== "none"
        ? `It is changing to version ${fleet?.open?.manifest.serial ?? fleet?.current?.serial}.`
        : !isMember && fleet !== undefined
          ? "It is not admitted yet, or was removed."
          : !isWhole(member)
            ? `Processes of its replica ${member.self.part?.replica} are missing.`
            : `It has not reached the store for ${(now - member.seenAt).toFixed(1)} s.`
  return fleetError("NotServing", [member.self.rank], {
    rank: member.self.rank,
    detail: why,
    remedy: "Send requests to another replica, and try this one again.",
    isRetryable: true
  })
}

/** The gate of a member, whose state now is `member()`. */
export const makeGate = (member: () => MemberState) => {
  let readers = 0
  let whenUnread: (() => void) | undefined
  const leave = Effect.sync(() => {
    readers -= 1
    if (readers > 0) return
    whenUnread?.()
    whenUnread = undefined
  })
  /** Fails when the member has not seen the history for too long, or was removed. */
  const untilFenced: Effect.Effect<never, FleetError> = Effect.suspend(() =>
    Effect.flatMap(seconds, (now) => {
      const { seenAt, times } = member()
      const left = seenAt + times.fence - now
      if (left <= 0 || !isWhole(member())) return Effect.fail(notServing(member(), now))
      return Effect.andThen(Effect.sleep(Duration.seconds(Math.min(left, times.beat))), untilFenced)
    })
  )
  return {
    /** Ends when no program uses the weights. */
    unread: Effect.callback<void>((resume) => {
      if (readers === 0) resume(Effect.void)
      else whenUnread = () => resume(Effect.void)
    }),
    /** Runs a program with the version in use. Fails with NotServing. */
    use: <A, E, R>(program: (version: Manifest) => Effect.Effect<A, E, R>): Effect.Effect<A, E | FleetError, R> =>
      Effect.flatMap(seconds, (now): Effect.Effect<A, E | FleetError, R> => {
        const state = member()
        if (!canServe(state, now)) return Effect.fail(notServing(state, now))
        readers += 1
        return Effect.ensuring(Effect.raceFirst(program(state.live!), untilFenced), leave)
      })
  }
}
