// SPDX-License-Identifier: Apache-2.0
/**
 * The history of a fleet: one list of entries in the store, on whose order everybody agrees, because an entry is put at
 * the next number only if nothing stands there. Pure: all who read the same entries know the same fleet.
 *
 * | entry | counts where | what follows |
 * | --- | --- | --- |
 * | Genesis | nothing stands before it | the fleet as its members knew it, or a new one |
 * | Admit | no update is open, its rank is free, and a replica states the current version | it is a member |
 * | Remove | it is a member | it is none; it stops serving, if it still can |
 * | Propose | no update is open, and the number was not used | the update is open |
 * | Prepare | the update is open under policy `all` | members stop serving, and say so |
 * | Commit | the update is open, under `all` also prepared | its version is the current one |
 * | Abort | the update is open | the current version stays |
 * | Snapshot | always | entries before it are not needed |
 *
 * An entry that does not count changes nothing: whoever put it finds out when they read it.
 */
import { Rank } from "@tensorferry/core/base/Ids"
import { Natural, Positive } from "@tensorferry/core/base/Numbers"
import * as Schema from "effect/Schema"
import { isSameVersion, Manifest } from "./Manifest.ts"

/**
 * Milliseconds since 1970 by the wall clock of whoever stated it. For people, who compare it with their logs: nothing is
 * decided by it.
 */
export const WallTime = Schema.optionalKey(Natural)

/** When an update may be taken into use. */
export const CommitPolicy = Schema.Union([
  /** All replicas together, or none: no two versions are ever served. */
  Schema.TaggedStruct("All", {}),
  /** As soon as so many have proven it; the others follow one by one, and serve the old version until then. */
  Schema.TaggedStruct("Quorum", { count: Positive }),
  /** Each replica as soon as it has proven it. */
  Schema.TaggedStruct("Each", {})
])
export type CommitPolicy = typeof CommitPolicy.Type

/** Somebody who takes part. A process that starts again is another member. */
export const FleetMember = Schema.Struct({
  /** Unique for each start of a process. */
  id: Schema.NonEmptyString,
  /** Its place in plans; a successor takes over the rank of whom it replaces. */
  rank: Rank,
  /** Sources bring new versions; replicas serve them. */
  role: Schema.Literals(["source", "replica"]),
  /** The replica that it is a process of, and how many processes that has; left out where the replica is one process. */
  part: Schema.optionalKey(Schema.Struct({ replica: Schema.String, of: Positive }))
})
export type FleetMember = typeof FleetMember.Type

/** Members that are one replica together, by replica; those that lack a process are left out. */
export const wholeReplicas = (members: ReadonlyArray<FleetMember>): ReadonlyArray<ReadonlyArray<FleetMember>> => {
  const replicas = new Map<string, Array<FleetMember>>()
  for (const member of members) {
    if (member.role !== "replica") continue
    const key = member.part === undefined ? `alone ${member.id}` : `part ${member.part.replica}`
    const ranks = replicas.get(key)
    if (ranks === undefined) replicas.set(key, [member])
    else ranks.push(member)
  }
  return [...replicas.values()].filter((ranks) => ranks.length === (ranks[0]!.part?.of ?? 1))
}

/** An update that is neither committed nor given up. */
export const OpenUpdate = Schema.Struct({
  manifest: Manifest,
  policy: CommitPolicy,
  /** Id of the controller that proposed it. */
  by: Schema.String,
  isPrepared: Schema.Boolean,
  /** When it was proposed. */
  proposedAt: WallTime,
  /** When members were told to stop serving. */
  preparedAt: WallTime,
  /** Who was a member when it was proposed: plans are made for them, and repaired as they go. */
  members: Schema.Array(FleetMember)
})
export type OpenUpdate = typeof OpenUpdate.Type

/** How an update ended. */
export const UpdateEnd = Schema.Struct({
  manifest: Manifest,
  policy: CommitPolicy,
  /** Id of the controller that proposed it. */
  by: Schema.String,
  outcome: Schema.Literals(["committed", "aborted"]),
  /** Ids of those who kept it from being committed; empty where it was. */
  culprits: Schema.Array(Schema.String),
  /** Why, in words; empty where it was committed. */
  reason: Schema.String,
  /** When it was proposed. */
  proposedAt: WallTime,
  /** When members were told to stop serving. */
  preparedAt: WallTime,
  /** When it was committed or given up. */
  endedAt: WallTime
})
export type UpdateEnd = typeof UpdateEnd.Type

/** A fleet after some entry. */
export const FleetState = Schema.Struct({
  /** How often the store lost its memory, and members brought theirs. */
  generation: Natural,
  /** Number of the entry; members of greater ones know more. */
  position: Natural,
  /** Number of the last entry that changed who is a member. Plans of other epochs are stale. */
  epoch: Natural,
  /** Number of the last entry that left a member out. */
  removedAt: Natural,
  members: Schema.Array(FleetMember),
  /** The version in use, null before the first. */
  current: Schema.NullOr(Manifest),
  open: Schema.NullOr(OpenUpdate),
  /** The least number of the next version. */
  nextSerial: Positive,
  /** The last updates, oldest first; at most `historyLength`. */
  history: Schema.Array(UpdateEnd)
})
export type FleetState = typeof FleetState.Type

/** Updates whose end a fleet remembers. */
export const historyLength = 32

/** One entry, and when it was put. */
export const LogEntry = Schema.Union([
  Schema.TaggedStruct("Genesis", { state: FleetState, at: WallTime }),
  Schema.TaggedStruct("Admit", { member: FleetMember, holds: Schema.NullOr(Manifest), at: WallTime }),
  Schema.TaggedStruct("Remove", { id: Schema.String, reason: Schema.String, at: WallTime }),
  Schema.TaggedStruct("Propose", { manifest: Manifest, policy: CommitPolicy, by: Schema.String, at: WallTime }),
  Schema.TaggedStruct("Prepare", { serial: Positive, at: WallTime }),
  Schema.TaggedStruct("Commit", { serial: Positive, at: WallTime }),
  Schema.TaggedStruct("Abort", {
    serial: Positive,
    culprits: Schema.Array(Schema.String),
    reason: Schema.String,
    at: WallTime
  }),
  Schema.TaggedStruct("Snapshot", { state: FleetState, at: WallTime })
])
export type LogEntry = typeof LogEntry.Type

/** A fleet of nobody, before the first entry. */
export const emptyFleet: FleetState = {
  generation: 0,
  position: 0,
  epoch: 0,
  removedAt: 0,
  members: [],
  current: null,
  open: null,
  nextSerial: 1,
  history: []
}

/** A time under its name; nothing where none was stated. */
const timed = <Name extends string>(name: Name, at: number | undefined): { readonly [name in Name]?: number } =>
  (at === undefined ? {} : { [name]: at }) as { readonly [name in Name]?: number }

const ended = (
  state: FleetState,
  { manifest, policy, by, proposedAt, preparedAt }: OpenUpdate,
  how: Pick<UpdateEnd, "outcome" | "culprits" | "reason">,
  at: number | undefined
): Pick<FleetState, "open" | "history"> => {
  const times = { ...timed("proposedAt", proposedAt), ...timed("preparedAt", preparedAt), ...timed("endedAt", at) }
  return { open: null, history: [...state.history, { manifest, policy, by, ...how, ...times }].slice(-historyLength) }
}

/** What an entry changes where it counts; undefined where it does not. */
const effectOf = (state: FleetState, entry: LogEntry): Partial<FleetState> | undefined => {
  const { members, open, current } = state
  const epoch = state.position + 1
  switch (entry._tag) {
    case "Genesis":
    case "Snapshot":
      return entry.state
    case "Admit": {
      const { id, rank } = entry.member
      const isKnown = members.some((member) => member.id === id || member.rank === rank)
      if (open !== null || isKnown) return undefined
      if (entry.member.role === "replica" && !isSameVersion(entry.holds, current)) return undefined
      return { epoch, members: [...members, entry.member] }
    }
    case "Remove":
      if (!members.some(({ id }) => id === entry.id)) return undefined
      return { epoch, removedAt: epoch, members: members.filter(({ id }) => id !== entry.id) }
    case "Propose": {
      if (open !== null || entry.manifest.serial < state.nextSerial) return undefined
      const { manifest, policy, by } = entry
      const proposed = { manifest, policy, by, isPrepared: false, members, ...timed("proposedAt", entry.at) }
      return { open: proposed, nextSerial: manifest.serial + 1 }
    }
    case "Prepare":
      if (open?.manifest.serial !== entry.serial || open.policy._tag !== "All") return undefined
      return { open: { ...open, isPrepared: true, ...timed("preparedAt", entry.at) } }
    case "Commit": {
      if (open?.manifest.serial !== entry.serial) return undefined
      if (open.policy._tag === "All" && !open.isPrepared) return undefined
      const how = { outcome: "committed", culprits: [], reason: "" } as const
      return { ...ended(state, open, how, entry.at), current: open.manifest }
    }
    case "Abort": {
      if (open?.manifest.serial !== entry.serial) return undefined
      const { culprits, reason } = entry
      return ended(state, open, { outcome: "aborted", culprits, reason }, entry.at)
    }
  }
}

/** The fleet after one entry more. */
export const applyEntry = (state: FleetState, entry: LogEntry): FleetState => ({
  ...state,
  ...effectOf(state, entry),
  position: state.position + 1
})

/** Whether the entry would count now. */
export const counts = (state: FleetState, entry: LogEntry): boolean => effectOf(state, entry) !== undefined

/**
 * The fleet after all entries that follow without a gap, from what is known or from the last one that states it whole.
 * `entries` are by number; numbers begin at 1.
 */
export const readLog = (
  known: FleetState | undefined,
  entries: ReadonlyMap<number, LogEntry>
): FleetState | undefined => {
  let state = known
  for (const [position, entry] of entries) {
    if (entry._tag !== "Genesis" && entry._tag !== "Snapshot") continue
    if (position > (state?.position ?? 0)) state = { ...entry.state, position }
  }
  for (let next = state === undefined ? undefined : entries.get(state.position + 1); next !== undefined; ) {
    state = applyEntry(state!, next)
    next = entries.get(state.position + 1)
  }
  return state
}
