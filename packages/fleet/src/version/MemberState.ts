// SPDX-License-Identifier: Apache-2.0
/**
 * One member of a fleet, as data. Pure: what a member does follows from `memberStep`, the next state and what is to be done.
 *
 * A replica that is no member takes the current version from others, proves it, takes it into use unseen, and asks to be
 * admitted. A member stages what is proposed. Under policy `all` it stops serving when the history says `Prepare`, and
 * serves again when the update is committed, with the new version, or given up, with the old one. Only `canServe` decides
 * whether requests are answered; it is false from the moment at which others may no longer count on it.
 *
 * Invariant: what is in use is one proven version as a whole, or nothing (`live` is null while weights are written).
 */
import * as Schema from "effect/Schema"
import {
  emptyFleet,
  type FleetMember,
  FleetMember as FleetMemberSchema,
  FleetState,
  type LogEntry,
  readLog,
  WallTime
} from "./FleetLog.ts"
import type { FleetTimes } from "./FleetTimes.ts"
import { isSameVersion, type Manifest } from "./Manifest.ts"

/** A version without its digests. */
export const VersionId = Schema.Struct({ serial: Schema.Int, content: Schema.String })
export type VersionId = typeof VersionId.Type

/** What a member states about itself, again at every beat. */
export const MemberReport = Schema.Struct({
  member: FleetMemberSchema,
  /** Grows with every report. */
  beat: Schema.Int,
  /** The memory of the store that it looked at last; null before it looked. What it states counts only there. */
  incarnation: Schema.NullOr(Schema.String),
  /** The version in use; null while there is none. */
  live: Schema.NullOr(VersionId),
  /** Received and proven, not in use. */
  staged: Schema.NullOr(VersionId),
  /** The version for which it has stopped serving. */
  paused: Schema.NullOr(VersionId),
  /** The greatest number of a version that it has had in use. */
  highest: Schema.Int,
  /** Why the last attempt to stage failed; empty where none has. */
  failure: Schema.String,
  /** The version that nobody is left to give to it. */
  lost: Schema.optionalKey(VersionId),
  /** Ids of members whose connections to it have ended lately: they may be gone, where they give no other sign of life. */
  missed: Schema.optionalKey(Schema.Array(Schema.String)),
  /** The most it ever knew; only while the history is empty. */
  knows: Schema.NullOr(FleetState),
  /** When it was stated. */
  at: WallTime
})
export type MemberReport = typeof MemberReport.Type

/** All that a member knows and does. Times are seconds of its own clock. */
export interface MemberState {
  readonly self: FleetMember
  readonly times: FleetTimes
  readonly now: number
  /** Of the store's memory; undefined before the first look. */
  readonly incarnation: string | undefined
  /** As the history in this incarnation says; undefined while it is empty. */
  readonly fleet: FleetState | undefined
  /** The most it ever knew. */
  readonly known: FleetState | undefined
  readonly live: Manifest | null
  /** The greatest number of a version that was in use; no smaller one comes into use again. */
  readonly highest: number
  /** What is being taken into use. */
  readonly flipping: Manifest | null
  readonly staged: Manifest | null
  readonly staging: Manifest | null
  /** When to stage again after a failure. */
  readonly retryAt: number
  /** Failures in a row, of one version and with the same members. */
  readonly failures: number
  readonly failure: string
  /** What nobody is left to give. */
  readonly lost: Manifest | null
  /** By member's id, until when it is stated that a connection to it has ended. */
  readonly missed: ReadonlyMap<string, number>
  readonly pause: "none" | "pausing" | "paused"
  /** When the last look began, in which it was a member. */
  readonly seenAt: number
  /** When the last look began. */
  readonly askedAt: number
  readonly beat: number
  /** Since when this member knows of the open update in its present phase. */
  readonly openSince: { readonly serial: number; readonly isPrepared: boolean; readonly at: number } | undefined
}

/** What a member hears of. */
export type MemberEvent =
  /** Time has passed; comes at every beat. */
  | { readonly _tag: "Beat"; readonly now: number }
  /** A look at the history, begun at `askedAt`; entries that are known may be left out. */
  | {
      readonly _tag: "Read"
      readonly now: number
      readonly askedAt: number
      readonly incarnation: string
      readonly entries: ReadonlyMap<number, LogEntry>
    }
  /** Everything of a version has arrived and was proven. */
  | { readonly _tag: "Staged"; readonly now: number; readonly manifest: Manifest }
  | {
      readonly _tag: "StageFailed"
      readonly now: number
      readonly manifest: Manifest
      readonly reason: string
      /** No member is left who could give it. */
      readonly isLost?: boolean
    }
  /** A connection to another member has ended, and this one did not end it. */
  | { readonly _tag: "Missed"; readonly now: number; readonly id: string }
  /** No request is being answered any more. */
  | { readonly _tag: "Paused"; readonly now: number }
  /** The weights in use are those of the version. */
  | { readonly _tag: "Flipped"; readonly now: number; readonly manifest: Manifest }
  /** The weights in use may be anything. */
  | { readonly _tag: "FlipFailed"; readonly now: number; readonly reason: string }

/** What a member does. */
export type MemberEffect =
  /** State this, then look at the history. */
  | { readonly _tag: "Report"; readonly report: MemberReport }
  /** Put the entry at this number, unless something stands there. */
  | { readonly _tag: "Append"; readonly incarnation: string; readonly position: number; readonly entry: LogEntry }
  /** Receive and prove this version, instead of whatever is being staged. */
  | { readonly _tag: "Stage"; readonly manifest: Manifest }
  /** What was staged, or is being staged, is not needed. */
  | { readonly _tag: "Drop" }
  /** Stop answering requests, and say when none is left. */
  | { readonly _tag: "Pause" }
  /** Take what was staged into use. */
  | { readonly _tag: "Flip"; readonly manifest: Manifest }
  /** Answer requests again, as far as `canServe` allows. */
  | { readonly _tag: "Resume" }

/** A member's next state and what to do, in order. */
export type MemberStep = readonly [state: MemberState, effects: ReadonlyArray<MemberEffect>]

/** A member that knows nothing yet. `live` is a version that it brings along, as a source does. */
export const newMember = (self: FleetMember, times: FleetTimes, live: Manifest | null = null): MemberState => ({
  self,
  times,
  now: 0,
  incarnation: undefined,
  fleet: undefined,
  known: undefined,
  live,
  highest: live?.serial ?? 0,
  flipping: null,
  staged: null,
  staging: null,
  retryAt: 0,
  failures: 0,
  failure: "",
  lost: null,
  missed: new Map(),
  pause: "none",
  seenAt: Number.NEGATIVE_INFINITY,
  askedAt: Number.NEGATIVE_INFINITY,
  beat: 0,
  openSince: undefined
})

const isMember = ({ fleet, self }: MemberState): boolean => fleet?.members.some(({ id }) => id === self.id) ?? false

/** Whether all processes of this member's replica are members. */
export const isWhole = ({ fleet, self }: Pick<MemberState, "fleet" | "self">): boolean => {
  const { part } = self
  if (part === undefined || fleet === undefined) return true
  return fleet.members.filter((member) => member.part?.replica === part.replica).length === part.of
}

/** Whether requests may be answered now, with the version `live`. */
export const canServe = (state: MemberState, now: number): boolean =>
  state.self.role === "replica" &&
  isWhole(state) &&
  state.live !== null &&
  state.flipping === null &&
  state.pause === "none" &&
  now < state.seenAt + state.times.fence

const idOf = (manifest: Manifest | null): VersionId | null =>
  manifest === null ? null : { serial: manifest.serial, content: manifest.content }

/** What a member states now. */
export const reportOf = (state: MemberState): MemberReport => ({
  member: state.self,
  beat: state.beat,
  incarnation: state.incarnation ?? null,
  live: idOf(state.live),
  staged: idOf(state.staged),
  paused: state.pause === "paused" ? idOf(state.fleet?.open?.manifest ?? null) : null,
  highest: state.highest,
  failure: state.failure,
  ...(state.lost === null ? {} : { lost: idOf(state.lost)! }),
  ...(state.missed.size === 0 ? {} : { missed: [...state.missed.keys()] }),
  knows: state.fleet === undefined ? (state.known ?? null) : null
})

/** Knows more: of a later generation, or a later entry. */
export const knowsMore = (a: FleetState | undefined | null, b: FleetState | undefined | null): boolean =>
  (a?.generation ?? -1) > (b?.generation ?? -1) ||
  ((a?.generation ?? -1) === (b?.generation ?? -1) && (a?.position ?? -1) > (b?.position ?? -1))

/** The version that this replica needs and does not have. */
const missing = (state: MemberState): Manifest | null => {
  const { fleet, live, staged, flipping, self } = state
  if (fleet === undefined || self.role !== "replica") return null
  const wanted = isMember(state) && fleet.open !== null ? fleet.open.manifest : fleet.current
  const has = [live, staged, flipping].some((manifest) => isSameVersion(manifest, wanted))
  return has || (wanted !== null && wanted.serial < state.highest) ? null : wanted
}

/** How long a member waits for the update that it is in, and whom it accuses then. */
const expired = (state: MemberState): LogEntry | undefined => {
  const { fleet, openSince, now, times } = state
  if (fleet?.open == null || openSince === undefined || !isMember(state)) return undefined
  const limit = (openSince.isPrepared ? times.prepare : times.stage) + times.fence + 4 * times.grace
  if (now - openSince.at < limit) return undefined
  const { manifest, by } = fleet.open
  const reason = `Controller ${by} ended the update neither way within ${limit} s.`
  return { _tag: "Abort", serial: manifest.serial, culprits: [by], reason }
}

/** What to append, where something is due. */
const due = (state: MemberState): LogEntry | undefined => {
  const { fleet, live, flipping, self } = state
  if (fleet === undefined) return undefined
  const late = expired(state)
  if (late !== undefined) return late
  if (isMember(state) || fleet.open !== null || flipping !== null) return undefined
  if (self.role === "replica" && !isSameVersion(live, fleet.current)) return undefined
  return { _tag: "Admit", member: self, holds: fleet.current }
}

/** Everything that follows from a state by itself. */
const settle = (given: MemberState): MemberStep => {
  let state = given
  const effects: Array<MemberEffect> = []
  const { fleet, self } = state
  if (fleet === undefined || self.role !== "replica") return [state, effects]
  const { open, current } = fleet
  if (current === null && state.live !== null && !isMember(state)) {
    // All who knew of this version were gone when the history began again; it cannot be told from any other weights.
    state = { ...state, live: null }
  }
  const isNeeded = (manifest: Manifest): boolean =>
    isSameVersion(manifest, current) || (open !== null && isMember(state) && isSameVersion(manifest, open.manifest))
  const { staged, staging } = state
  if ((staged !== null && !isNeeded(staged)) || (staging !== null && !isNeeded(staging))) {
    state = { ...state, staged: null, staging: null }
    effects.push({ _tag: "Drop" })
  }
  const wanted = missing(state)
  if (wanted !== null && !isSameVersion(state.staging, wanted) && state.now >= state.retryAt) {
    state = { ...state, staging: wanted }
    effects.push({ _tag: "Stage", manifest: wanted })
  }
  const mustPause =
    open?.isPrepared === true && isMember(state) && state.staged !== null && isSameVersion(state.staged, open.manifest)
  const mustFlip =
    state.staged !== null &&
    isSameVersion(state.staged, current) &&
    state.flipping === null &&
    state.staged.serial >= state.highest
  if ((mustPause || mustFlip) && state.pause === "none") {
    state = { ...state, pause: "pausing" }
    effects.push({ _tag: "Pause" })
  }
  if (mustFlip && state.pause === "paused") {
    state = { ...state, flipping: state.staged, staged: null, live: null }
    effects.push({ _tag: "Flip", manifest: state.flipping! })
  }
  if (state.pause === "paused" && !mustPause && !mustFlip && state.flipping === null) {
    state = { ...state, pause: "none" }
    effects.push({ _tag: "Resume" })
  }
  return [state, effects]
}

/** Doublings of the time until what failed is tried again: a version that cannot be had shall not fill links meanwhile. */
const mostDoublings = 6

const later = ({ now, times, failures }: MemberState): Pick<MemberState, "retryAt" | "failures"> => ({
  retryAt: now + times.beat * 2 ** Math.min(failures, mostDoublings),
  failures: failures + 1
})

const onRead = (state: MemberState, event: MemberEvent & { readonly _tag: "Read" }): MemberStep => {
  // A look that was overtaken by a later one shows what has passed.
  if (event.askedAt < state.askedAt) return [state, []]
  const isNew = event.incarnation !== state.incarnation
  const fleet = readLog(isNew ? undefined : state.fleet, event.entries)
  // Others are there to take from, or something else is to be taken.
  const isOther =
    fleet?.epoch !== state.fleet?.epoch || fleet?.open?.manifest.serial !== state.fleet?.open?.manifest.serial
  const read: MemberState = {
    ...state,
    ...(isOther ? { retryAt: 0, failures: 0, lost: null } : {}),
    incarnation: event.incarnation,
    fleet,
    known: knowsMore(fleet, state.known) ? fleet : state.known,
    askedAt: event.askedAt
  }
  const { open } = fleet ?? emptyFleet
  const before = state.openSince
  const isSame = before?.serial === open?.manifest.serial && before?.isPrepared === open?.isPrepared
  const openSince =
    open === null
      ? undefined
      : isSame
        ? before
        : { serial: open.manifest.serial, isPrepared: open.isPrepared, at: state.now }
  // Before the members have said what they know, nobody is named a member anew, and nobody is left out.
  const seenAt = fleet === undefined ? state.seenAt : isMember(read) ? event.askedAt : Number.NEGATIVE_INFINITY
  const [next, effects] = settle({ ...read, openSince, seenAt })
  const entry = due(next)
  if (entry === undefined) return [next, effects]
  const position = next.fleet!.position + 1
  return [next, [...effects, { _tag: "Append", incarnation: event.incarnation, position, entry }]]
}

/** Those who are still members, and were missed less than `dead` ago: what has another reason is forgotten. */
const stillMissed = ({ missed, fleet, now }: MemberState): MemberState["missed"] =>
  missed.size === 0
    ? missed
    : new Map([...missed].filter(([id, until]) => now < until && fleet?.members.some((member) => member.id === id)))

/** What an event makes of a member. Times of events never go back; one that does counts as the last. */
export const memberStep = (given: MemberState, event: MemberEvent): MemberStep => {
  const state: MemberState = { ...given, now: Math.max(given.now, event.now) }
  switch (event._tag) {
    case "Beat": {
      const [next, effects] = settle({ ...state, beat: state.beat + 1, missed: stillMissed(state) })
      return [next, [...effects, { _tag: "Report", report: reportOf(next) }]]
    }
    case "Read":
      return onRead(state, event)
    case "Missed":
      return [{ ...state, missed: new Map(state.missed).set(event.id, state.now + state.times.dead) }, []]
    case "Staged":
      if (!isSameVersion(state.staging, event.manifest)) return [state, []]
      return settle({ ...state, staging: null, staged: event.manifest, failure: "", failures: 0, lost: null })
    case "StageFailed":
      if (!isSameVersion(state.staging, event.manifest)) return [state, []]
      return [
        {
          ...state,
          staging: null,
          failure: event.reason,
          lost: event.isLost === true ? event.manifest : null,
          ...later(state)
        },
        []
      ]
    case "Paused":
      return state.pause === "pausing" ? settle({ ...state, pause: "paused" }) : [state, []]
    case "Flipped":
      if (!isSameVersion(state.flipping, event.manifest)) return [state, []]
      return settle({
        ...state,
        flipping: null,
        live: event.manifest,
        highest: Math.max(state.highest, event.manifest.serial)
      })
    case "FlipFailed":
      return settle({
        ...state,
        flipping: null,
        live: null,
        failure: event.reason,
        ...later(state)
      })
  }
}
