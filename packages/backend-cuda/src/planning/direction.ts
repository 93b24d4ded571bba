// SPDX-License-Identifier: Apache-2.0
/**
 * Which end of a flow moves the bytes between memories: the receiver pulls, or the sender pushes.
 *
 * Invariant: a pure function of what both ends published, so both give the same answer. Measured on NVLink: one way, both
 * are equal; both ways at once, pushing is a tenth faster, by kernel and by copy engine.
 *
 * A receiver of pushes learns that they are there when the ranks meet after the moves; see `CopyDriver`.
 */
import * as Result from "effect/Result"

export const directionPreferences = ["auto", "push", "pull"] as const
export type DirectionPreference = (typeof directionPreferences)[number]
export type Direction = "push" | "pull"

export interface DirectionFacts {
  readonly preference: DirectionPreference
  /** Why the sender's memory cannot be opened elsewhere; undefined where it can. */
  readonly senderProblem: string | undefined
  readonly receiverProblem: string | undefined
  /** Bytes flow between the two ranks in both directions. */
  readonly isDuplex: boolean
}

/** Ranks with different preferences agree on what needs none. */
export const commonPreference = (preferences: Iterable<DirectionPreference>): DirectionPreference => {
  const distinct = new Set(preferences)
  const [only] = distinct
  return distinct.size === 1 ? only! : "auto"
}

/** The direction, or why the memory of neither end can be opened by the other. */
export const directionOf = (facts: DirectionFacts): Result.Result<Direction, string> => {
  const { preference, senderProblem, receiverProblem } = facts
  const canPull = senderProblem === undefined
  const canPush = receiverProblem === undefined
  if (!canPull && !canPush) {
    return Result.fail(
      `the sender's memory cannot be opened (${senderProblem}), nor the receiver's (${receiverProblem})`
    )
  }
  if (!canPush) return Result.succeed("pull")
  if (!canPull) return Result.succeed("push")
  if (preference !== "auto") return Result.succeed(preference)
  return Result.succeed(facts.isDuplex ? "push" : "pull")
}
