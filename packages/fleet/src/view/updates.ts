// SPDX-License-Identifier: Apache-2.0
/** Updates of a fleet, with how long they took, who was slow and who kept them from being committed. Pure. */
import { fractionOf, type MemberProgress } from "../progress/MemberProgress.ts"
import type { FleetLook } from "../service/FleetStore.ts"
import type { CommitPolicy, FleetState, OpenUpdate, UpdateEnd } from "../version/FleetLog.ts"

/** A version as people call it. */
export interface VersionName {
  readonly serial: number
  /** As its publisher called it; empty where nobody knows any more. */
  readonly label: string
}

/** A member, also one that is gone. */
export interface MemberName {
  readonly id: string
  /** Null where nobody knows it any more. */
  readonly rank: number | null
  /** Name of its machine; null where it has not said so, or is gone. */
  readonly host: string | null
}

/** How one member took a version. Known of members that run. */
export interface Taken extends MemberName {
  /** From the beginning until all of it was proven, by the member's own clock; null before that. */
  readonly seconds: number | null
  /** How much of it is here and proven, from 0 to 1. */
  readonly fraction: number
  /** How often it was begun. */
  readonly tries: number
  /** When it had all of it, in milliseconds since 1970; null before that. */
  readonly stagedAt: number | null
  /** When it was taken into use; null before that. */
  readonly liveAt: number | null
}

/** One update. Times are milliseconds since 1970 as whoever acted stated them; null where nobody did. */
export interface UpdateView extends VersionName {
  readonly content: string
  readonly policy: CommitPolicy
  readonly outcome: "open" | "committed" | "aborted"
  /** Who proposed it. */
  readonly by: MemberName
  /** Of an open one, whether members were told to stop serving. */
  readonly isPrepared: boolean
  readonly proposedAt: number | null
  readonly preparedAt: number | null
  readonly endedAt: number | null
  /** From the proposal to the end; null while it is open. */
  readonly seconds: number | null
  /** For how long members were told not to serve; null where they were not, or while it is open. */
  readonly pauseSeconds: number | null
  /** Who kept it from being committed. */
  readonly culprits: ReadonlyArray<MemberName>
  /** Why it was given up, in words; empty where it was not. */
  readonly reason: string
  /** How members that run took it, who is slowest first. */
  readonly taken: ReadonlyArray<Taken>
}

/** A member that the history left out. */
export interface Removal {
  readonly member: MemberName
  /** Milliseconds since 1970 as whoever left it out stated it; null where nobody did. */
  readonly at: number | null
  readonly reason: string
}

/** `3-0b5c1a2e` of `3-0b5c1a2e-…`: enough to tell members apart. */
export const shortId = (id: string): string => /^\d+-[0-9a-f]{8}(?=-)/.exec(id)?.[0] ?? id

const rankInId = (id: string): number | null => {
  const found = /^(\d{1,10})-/.exec(id)
  return found === null ? null : Number(found[1])
}

/** Finds members by id, in the history, in reports, and at last in the id itself. */
export const namesOf = (
  fleet: FleetState | undefined,
  look: FleetLook,
  progress: ReadonlyMap<string, MemberProgress>
): ((id: string) => MemberName) => {
  const ranks = new Map<string, number>()
  for (const entry of look.entries.values()) if (entry._tag === "Admit") ranks.set(entry.member.id, entry.member.rank)
  for (const { member } of look.reports) ranks.set(member.id, member.rank)
  for (const { id, rank } of [...(fleet?.members ?? []), ...(fleet?.open?.members ?? [])]) ranks.set(id, rank)
  return (id) => ({ id, rank: ranks.get(id) ?? rankInId(id), host: progress.get(id)?.host ?? null })
}

/** Removals that a view has. */
const mostRemovals = 8

/** The last removals whose entries still stand, newest first. */
export const removalsOf = (
  fleet: FleetState | undefined,
  look: FleetLook,
  progress: ReadonlyMap<string, MemberProgress>
): ReadonlyArray<Removal> => {
  const name = namesOf(fleet, look, progress)
  return [...look.entries]
    .sort(([a], [b]) => b - a)
    .flatMap(([, entry]) =>
      entry._tag === "Remove" ? [{ member: name(entry.id), at: entry.at ?? null, reason: entry.reason }] : []
    )
    .slice(0, mostRemovals)
}

const between = (from: number | null, to: number | null): number | null =>
  from === null || to === null ? null : Math.max(0, to - from) / 1000

/** Those who are not done come first, the least advanced of them; then those who took longest. */
const slowestFirst = (a: Taken, b: Taken): number => {
  const [one, two] = [a.seconds ?? Number.MAX_VALUE, b.seconds ?? Number.MAX_VALUE]
  return two - one || a.fraction - b.fraction || (a.rank ?? 0) - (b.rank ?? 0)
}

const takenOf = (
  serial: number,
  progress: ReadonlyMap<string, MemberProgress>,
  name: (id: string) => MemberName
): ReadonlyArray<Taken> =>
  [...progress.values()]
    .flatMap(({ id, versions }): ReadonlyArray<Taken> => {
      const version = versions.find((each) => each.serial === serial)
      if (version === undefined) return []
      const { begunAt, stagedAt, liveAt, tries } = version
      const seconds = between(begunAt, stagedAt)
      return [{ ...name(id), seconds, fraction: fractionOf(version), tries, stagedAt, liveAt }]
    })
    .sort(slowestFirst)

/** All updates that the history has, newest first. */
export const updatesOf = (
  fleet: FleetState | undefined,
  look: FleetLook,
  progress: ReadonlyMap<string, MemberProgress>
): ReadonlyArray<UpdateView> => {
  const name = namesOf(fleet, look, progress)
  const common = ({ manifest, policy, by, proposedAt, preparedAt }: OpenUpdate | UpdateEnd) => ({
    serial: manifest.serial,
    label: manifest.label,
    content: manifest.content,
    policy,
    by: name(by),
    proposedAt: proposedAt ?? null,
    preparedAt: preparedAt ?? null,
    taken: takenOf(manifest.serial, progress, name)
  })
  const ended = (fleet?.history ?? []).map((end): UpdateView => {
    const { outcome, culprits, reason } = end
    const shared = common(end)
    const endedAt = end.endedAt ?? null
    return {
      ...shared,
      outcome,
      isPrepared: shared.preparedAt !== null,
      endedAt,
      seconds: between(shared.proposedAt, endedAt),
      pauseSeconds: between(shared.preparedAt, endedAt),
      culprits: culprits.map(name),
      reason
    }
  })
  const { open } = fleet ?? { open: null }
  const running: ReadonlyArray<UpdateView> =
    open === null
      ? []
      : [
          {
            ...common(open),
            outcome: "open",
            isPrepared: open.isPrepared,
            endedAt: null,
            seconds: null,
            pauseSeconds: null,
            culprits: [],
            reason: ""
          }
        ]
  return [...running, ...ended.reverse()]
}
