// SPDX-License-Identifier: Apache-2.0
/**
 * A fleet as people look at it, at one moment. Pure: it follows from the history, the reports and the statements of progress
 * that stand in the store, and from how long each member has been silent.
 */
import { fractionOf, type MemberProgress } from "../progress/MemberProgress.ts"
import type { FleetLook } from "../service/FleetStore.ts"
import { type FleetMember, type FleetState, readLog } from "../version/FleetLog.ts"
import type { MemberReport, VersionId } from "../version/MemberState.ts"
import { type FlowView, flowOf } from "./flow.ts"
import { type Removal, removalsOf, type UpdateView, updatesOf, type VersionName } from "./updates.ts"

/**
 * | state | what a member does |
 * | --- | --- |
 * | `source` | brings versions, and serves none |
 * | `joining` | is not admitted yet |
 * | `receiving` | takes the next version; it goes on serving the one before, where it has one |
 * | `staged` | has received and proven the next version |
 * | `paused` | has stopped serving, and waits for the commit |
 * | `switching` | writes a version into its weights |
 * | `empty` | has had no version yet |
 * | `behind` | serves an older version than the current one |
 * | `serving` | serves the current version |
 * | `silent` | gives no sign of life |
 */
export const memberConditions = [
  "source",
  "joining",
  "receiving",
  "staged",
  "paused",
  "switching",
  "empty",
  "behind",
  "serving",
  "silent"
] as const
/** One of these states. */
export type MemberCondition = (typeof memberConditions)[number]

/** One member. */
export interface MemberView {
  readonly id: string
  readonly rank: number
  readonly role: FleetMember["role"]
  /** Whether the history names it a member. */
  readonly isAdmitted: boolean
  /** Name of its machine; null where it has not said so. */
  readonly host: string | null
  /** Number of its process there; null where it has not said so. */
  readonly process: number | null
  readonly state: MemberCondition
  /** Whether it answers requests, with whatever version it has; false of sources. */
  readonly isServing: boolean
  /** The version in use. */
  readonly version: VersionName | null
  /** The version that it is taking, and how much of it is here, from 0 to 1. */
  readonly taking: (VersionName & { readonly fraction: number }) | null
  /** Seconds since its last sign of life; null where it has given none. */
  readonly silentSeconds: number | null
  /** Why the last attempt to take a version failed; empty where none has. */
  readonly failure: string
  /** Bytes that it has received since it started; null where it has not said so. */
  readonly receivedBytes: number | null
}

/** A fleet at one moment. */
export interface FleetView {
  readonly name: string
  /** How often the store lost its memory, and members brought theirs. */
  readonly generation: number
  /** Number of the last entry of the history; 0 before the first. */
  readonly position: number
  /** The version in use. */
  readonly current: VersionName | null
  /** By rank, then by id. */
  readonly members: ReadonlyArray<MemberView>
  /** The last members that were left out, newest first; removals of long ago are forgotten. */
  readonly removals: ReadonlyArray<Removal>
  /** Newest first; the first one may be open. */
  readonly updates: ReadonlyArray<UpdateView>
  /** How the update that is open, or the last one, came to members. */
  readonly flow: FlowView | null
}

/** What a view is made of. */
export interface Seen {
  readonly name: string
  readonly look: FleetLook
  /** By id of the member. */
  readonly progress: ReadonlyMap<string, MemberProgress>
  /** By id of the member, seconds since its last sign of life. */
  readonly silent: ReadonlyMap<string, number>
}

/** Beats that a member may miss before it counts as silent. */
const missedBeats = 3
/** Where a member has not said how often it beats. */
const usualBeat = 0.5

/** States in which no requests are answered. */
const unserving: ReadonlySet<MemberCondition> = new Set(["joining", "paused", "switching", "empty", "silent"])

const isVersion = (id: VersionId | null, other: { readonly serial: number; readonly content: string } | undefined) =>
  id !== null && other !== undefined && id.serial === other.serial && id.content === other.content

/** Whether it takes a version that is still wanted: one that was given up stays as far as it came. */
const isWanted = (serial: number, fleet: FleetState | undefined, report: MemberReport | undefined): boolean =>
  serial === fleet?.open?.manifest.serial || (serial === fleet?.current?.serial && (report?.live?.serial ?? 0) < serial)

const stateOf = (
  member: FleetMember,
  fleet: FleetState | undefined,
  report: MemberReport | undefined,
  isSilent: boolean,
  isTaking: boolean
): MemberCondition => {
  if (report === undefined || isSilent) return "silent"
  if (!(fleet?.members.some(({ id }) => id === member.id) ?? false)) return "joining"
  if (member.role === "source") return "source"
  const open = fleet?.open?.manifest
  if (isVersion(report.paused, open)) return "paused"
  if (isVersion(report.staged, open)) return "staged"
  if (isTaking) return "receiving"
  if (report.live === null) return report.highest === 0 ? "empty" : "switching"
  return fleet?.current != null && report.live.serial < fleet.current.serial ? "behind" : "serving"
}

/** What stands in the store, for people. */
export const makeFleetView = (seen: Seen): FleetView => {
  const { name, look, progress, silent } = seen
  const fleet = readLog(undefined, look.entries)
  const labels = new Map<number, string>()
  for (const { manifest } of fleet?.history ?? []) labels.set(manifest.serial, manifest.label)
  for (const manifest of [fleet?.current, fleet?.open?.manifest])
    if (manifest != null) labels.set(manifest.serial, manifest.label)
  const named = (serial: number): VersionName => ({ serial, label: labels.get(serial) ?? "" })
  const reports = new Map(look.reports.map((report) => [report.member.id, report]))
  const known = new Map((fleet?.members ?? []).map((member) => [member.id, member]))
  for (const { member } of look.reports) known.set(member.id, member)
  const admitted = new Set((fleet?.members ?? []).map(({ id }) => id))

  const members = [...known.values()]
    .sort((a, b) => a.rank - b.rank || (a.id < b.id ? -1 : 1))
    .map((member): MemberView => {
      const report = reports.get(member.id)
      const stated = progress.get(member.id)
      const seconds = report === undefined ? null : (silent.get(member.id) ?? 0)
      const isSilent = seconds !== null && seconds > missedBeats * (stated?.beat ?? usualBeat)
      const last = stated?.versions.at(-1)
      const isTaking = last !== undefined && last.stagedAt === null && isWanted(last.serial, fleet, report)
      const state = stateOf(member, fleet, report, isSilent, isTaking)
      return {
        id: member.id,
        rank: member.rank,
        role: member.role,
        isAdmitted: admitted.has(member.id),
        host: stated?.host ?? null,
        process: stated?.process ?? null,
        state,
        isServing: member.role === "replica" && report?.live != null && !unserving.has(state),
        version: report?.live == null ? null : named(report.live.serial),
        taking: isTaking ? { ...named(last.serial), fraction: fractionOf(last) } : null,
        silentSeconds: seconds,
        failure: report?.failure ?? "",
        receivedBytes: stated?.received ?? null
      }
    })
  const updates = updatesOf(fleet, look, progress)
  return {
    name,
    generation: fleet?.generation ?? 0,
    position: fleet?.position ?? 0,
    current: fleet?.current == null ? null : named(fleet.current.serial),
    members,
    removals: removalsOf(fleet, look, progress),
    updates,
    flow: flowOf(updates[0]?.serial, known, progress)
  }
}
