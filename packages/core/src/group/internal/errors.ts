// SPDX-License-Identifier: Apache-2.0
/**
 * Wording of the failures of collectives, one place for all implementations.
 *
 * Invariant: every failure names the ranks it is about (of the whole job), the collective, and what the reader can do. A
 * `Failure` is made once per collective and completed per receiver, so that all members learn the same thing.
 */
import type { Rank } from "../../base/Ids.ts"
import { type ProcessGroupError, processGroupError } from "../../service/ProcessGroup.ts"

/** How a rank came to be gone: it closed its group in order, or its process or connection broke. */
export interface Departure {
  readonly kind: "left" | "lost"
  readonly detail: string
}

/** The failure as one receiver sees it. */
export type Failure = (receiver: Rank) => ProcessGroupError

/** A rank that has not arrived, and the collective in which it waits instead, if any. */
export interface MissingRank {
  readonly rank: Rank
  readonly waitsIn: string | undefined
}

const shown = 16

/** Lists ranks for people; long lists are cut. */
export const formatRanks = (ranks: ReadonlyArray<Rank>): string => {
  const list = ranks.slice(0, shown).join(", ")
  const more = ranks.length > shown ? ` and ${ranks.length - shown} more` : ""
  return `${ranks.length === 1 ? "rank" : "ranks"} ${list}${more}`
}

/** Milliseconds for people. */
export const formatMillis = (millis: number): string => (millis < 1000 ? `${millis} ms` : `${millis / 1000} s`)

export const peerGone =
  (gone: ReadonlyArray<readonly [Rank, Departure]>, op: string): Failure =>
  (receiver) =>
    processGroupError(
      "PeerGone",
      gone.map(([rank]) => rank),
      {
        rank: receiver,
        peer: gone[0]![0],
        op,
        scope: "peer",
        detail: `${gone.map(([rank, { kind, detail }]) => `Rank ${rank} ${kind === "left" ? "left the group" : "was lost"}: ${detail}.`).join(" ")}`,
        remedy: "Look at the output of that rank, then start the job again; a group without that rank can go on."
      }
    )

/** Rank 0 left because of a failure that was not reported to this member. */
export const hubGaveUp =
  (first: ProcessGroupError, op: string): Failure =>
  (receiver) =>
    processGroupError("PeerGone", first.ranks, {
      rank: receiver,
      ...(first.ranks[0] === undefined ? {} : { peer: first.ranks[0] }),
      op,
      scope: "peer",
      detail: `Rank 0 closed the group after a failure: ${first.reason.detail}`,
      remedy: first.reason.remedy
    })

export const deadlineExceeded =
  (missing: ReadonlyArray<MissingRank>, members: ReadonlyArray<Rank>, op: string, deadlineMillis: number): Failure =>
  (receiver) => {
    const ranks = missing.map(({ rank }) => rank)
    const elsewhere = missing
      .filter(({ waitsIn }) => waitsIn !== undefined)
      .slice(0, shown)
      .map(({ rank, waitsIn }) => ` Rank ${rank} waits in ${waitsIn}.`)
    return processGroupError("DeadlineExceeded", ranks, {
      rank: receiver,
      peer: ranks[0]!,
      op,
      isRetryable: true,
      detail: `Of ${formatRanks(members)}, ${formatRanks(ranks)} did not arrive, and showed no progress for ${formatMillis(deadlineMillis)}.${elsewhere.join("")}`,
      remedy:
        "See what the rank is doing. Wrap long local work in keepAlive, or raise the deadline (TENSORFERRY_DEADLINE)."
    })
  }

export const collectiveMismatch =
  (labels: ReadonlyMap<string, ReadonlyArray<Rank>>): Failure =>
  (receiver) =>
    processGroupError("CollectiveMismatch", [...labels.values()].flat(), {
      rank: receiver,
      detail: `Members met in different collectives: ${[...labels].map(([label, ranks]) => `${formatRanks(ranks)} in ${label}`).join("; ")}.`,
      remedy: "Make every member call the same collectives in the same order."
    })

export const payloadRefused =
  (rank: Rank, op: string, detail: string): Failure =>
  (receiver) =>
    processGroupError("ProtocolViolation", [rank], {
      rank: receiver,
      peer: rank,
      op,
      detail,
      remedy: "Send less, or raise maxFrameBytes on every rank. Tensors belong to the copy service."
    })

export const rendezvousFailed = (
  rank: Rank,
  about: ReadonlyArray<Rank>,
  detail: string,
  remedy: string
): ProcessGroupError => processGroupError("RendezvousFailed", about, { rank, scope: "service", detail, remedy })
