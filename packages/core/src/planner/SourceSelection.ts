// SPDX-License-Identifier: Apache-2.0
/**
 * Which source replica serves a destination rank. All ranks that hold a parameter are candidates; the rank's own copy
 * comes first, else replicas take turns by the destination's rank so that none of them serves everybody.
 *
 * Parameters that the same ranks hold in the same way share one candidate set, so the cost of grouping is paid once per
 * kind of parameter and not once per parameter.
 */
import * as Result from "effect/Result"
import type { Rank } from "../base/Ids.ts"
import type { PlanErrorKind } from "./PlanError.ts"

export interface Candidate {
  readonly rank: Rank
  readonly layoutClass: number
  readonly expertParallel: ReadonlyArray<Rank> | null
  readonly dataParallel: ReadonlyArray<Rank>
}

interface Candidates {
  readonly byRank: ReadonlyMap<Rank, Candidate>
  /** Replica groups in ascending order of their rank lists, members in ascending order of rank. */
  readonly replicas: ReadonlyArray<ReadonlyArray<Candidate>>
}

export interface CandidateSet {
  readonly all: Candidates
  readonly expertParallelSize: number | null
  /** By position in the expert-parallel group. */
  readonly byExpertPosition: ReadonlyMap<number, Candidates>
}

export interface SelectionFault {
  readonly kind: PlanErrorKind
  readonly detail: string
  readonly remedy: string
}

const compareLists = (a: ReadonlyArray<number>, b: ReadonlyArray<number>): number => {
  for (let at = 0; at < Math.min(a.length, b.length); at++) {
    if (a[at] !== b[at]) return a[at]! - b[at]!
  }
  return a.length - b.length
}

const group = (candidates: ReadonlyArray<Candidate>): Candidates => {
  const byGroup = new Map<string, Array<Candidate>>()
  for (const candidate of candidates) {
    const key = candidate.dataParallel.join(",")
    const members = byGroup.get(key)
    if (members === undefined) byGroup.set(key, [candidate])
    else members.push(candidate)
  }
  const replicas = [...byGroup.values()].sort((a, b) => compareLists(a[0]!.dataParallel, b[0]!.dataParallel))
  return { byRank: new Map(candidates.map((candidate) => [candidate.rank, candidate])), replicas }
}

/** Groups candidates given in ascending order of rank. */
export const candidateSet = (candidates: ReadonlyArray<Candidate>): CandidateSet => {
  const byPosition = new Map<number, Array<Candidate>>()
  for (const candidate of candidates) {
    const position = candidate.expertParallel?.indexOf(candidate.rank) ?? -1
    if (position < 0) continue
    const members = byPosition.get(position)
    if (members === undefined) byPosition.set(position, [candidate])
    else members.push(candidate)
  }
  return {
    all: group(candidates),
    expertParallelSize: candidates[0]?.expertParallel?.length ?? null,
    byExpertPosition: new Map([...byPosition].map(([position, members]) => [position, group(members)]))
  }
}

/**
 * The candidate that serves `rank`. `expertParallel` is the destination's expert group, or null where the parameter is in
 * none; groups of equal size on both sides must hold the same experts at the same position.
 */
export const selectSource = (
  set: CandidateSet,
  rank: Rank,
  expertParallel: ReadonlyArray<Rank> | null
): Result.Result<Candidate, SelectionFault> => {
  let candidates = set.all
  if (expertParallel !== null && expertParallel.length === set.expertParallelSize) {
    const position = expertParallel.indexOf(rank)
    const matching = set.byExpertPosition.get(position)
    if (matching === undefined) {
      return Result.fail({
        kind: "MissingExpertMatch",
        detail:
          `Position ${position} of the destination's expert group needs a source at the same position; ` +
          `sources are at ${[...set.byExpertPosition.keys()].sort((a, b) => a - b).join(", ") || "none"}.`,
        remedy: "Order expert groups alike on both sides, or correct the global expert numbers."
      })
    }
    candidates = matching
  }
  const own = candidates.byRank.get(rank)
  if (own !== undefined) return Result.succeed(own)
  const { replicas } = candidates
  if (replicas.length === 1) return Result.succeed(replicas[0]![0]!)
  const chosen = replicas[rank % replicas.length]!
  return Result.succeed(chosen[Math.floor(rank / replicas.length) % chosen.length]!)
}
