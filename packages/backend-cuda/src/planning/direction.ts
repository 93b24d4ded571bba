/**
 * Which end moves the bytes of a flow between memories that it can reach: the receiver pulls, or the sender pushes.
 *
 * Invariant: a pure function of what both ends published, so both give the same answer. Measured on NVLink: one way, both
 * are equal; both ways at once, pushing long rows is a tenth faster, and with short rows at the destination both are equal.
 *
 * A push needs a signal in each direction: the receiver allows it and may take that back, the sender tells that it is done.
 * Where there are no signals, nobody pushes unless told to; see `CopyDriver` for what then holds.
 */
import * as Result from "effect/Result"

export const directionPreferences = ["auto", "push", "pull"] as const
export type DirectionPreference = (typeof directionPreferences)[number]
export type Direction = "push" | "pull"

/** Rows from this length on are long: several lines of the link's packets each. */
export const longRowBytes = 4096

export interface DirectionFacts {
  readonly preference: DirectionPreference
  /** Why the sender's memory cannot be opened elsewhere; undefined where it can. */
  readonly senderProblem: string | undefined
  readonly receiverProblem: string | undefined
  /** Bytes flow between the two ranks in both directions. */
  readonly isDuplex: boolean
  /** Mean bytes that lie in one piece on both ends. */
  readonly rowBytes: number
  /** The two ends can signal each other through their memories. */
  readonly hasSignals: boolean
}

/** Ranks that were told different things agree on what needs no telling. */
export const commonPreference = (preferences: Iterable<DirectionPreference>): DirectionPreference => {
  const distinct = new Set(preferences)
  const [only] = distinct
  return distinct.size === 1 ? only! : "auto"
}

/** The direction, or why the memory of neither end can be opened by the other. */
export const directionOf = (facts: DirectionFacts): Result.Result<Direction, string> => {
  const { preference, senderProblem, receiverProblem, hasSignals } = facts
  const canPull = senderProblem === undefined
  const canPush = receiverProblem === undefined && (hasSignals || preference === "push")
  if (!canPull && !canPush) {
    return Result.fail(
      receiverProblem === undefined
        ? `the sender's memory cannot be opened (${senderProblem}), and pushing was not asked for`
        : `the sender's memory cannot be opened (${senderProblem}), nor the receiver's (${receiverProblem})`
    )
  }
  if (!canPush) return Result.succeed("pull")
  if (!canPull) return Result.succeed("push")
  if (preference !== "auto") return Result.succeed(preference)
  return Result.succeed(facts.isDuplex && facts.rowBytes >= longRowBytes ? "push" : "pull")
}
