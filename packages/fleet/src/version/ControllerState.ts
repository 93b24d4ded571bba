// SPDX-License-Identifier: Apache-2.0
/**
 * A controller of a fleet, as data. Pure: what it does follows from `controllerStep`. Any number of controllers may act at
 * once; the history takes one entry at each number, so the others learn that they came too late. A controller that starts
 * again knows what the history says.
 *
 * It begins the history when the store is empty, removes members that are silent, proposes versions, and ends updates: by
 * a commit, or by naming the culprits.
 */
import { type CommitPolicy, emptyFleet, type FleetState, type LogEntry, readLog, wholeReplicas } from "./FleetLog.ts"
import type { FleetTimes } from "./FleetTimes.ts"
import type { Manifest } from "./Manifest.ts"
import { knowsMore, type MemberReport, type VersionId } from "./MemberState.ts"

/** A version that somebody wants to be the next. */
export interface Wish {
  readonly label: string
  readonly content: string
  readonly tensors: Manifest["tensors"]
  readonly base?: string
  readonly policy: CommitPolicy
}

/** All that a controller knows. Counted times are seconds, of which each beat adds at most two beats' worth. */
export interface ControllerState {
  readonly id: string
  readonly times: FleetTimes
  readonly now: number
  readonly incarnation: string | undefined
  readonly fleet: FleetState | undefined
  /** Counted since this incarnation was seen first. */
  readonly sinceIncarnation: number
  /** Counted since a removal was seen, or since the history was seen first. */
  readonly sinceRemoval: number
  /** Counted since the open update was seen in its present phase. */
  readonly sincePhase: number
  /** By member's id: its last report, and the time counted since. */
  readonly reports: ReadonlyMap<string, { readonly report: MemberReport; readonly silent: number }>
  readonly wishes: ReadonlyArray<Wish>
  /** Number of the last entry that states the fleet whole. */
  readonly snapshotAt: number
}

/** What a controller hears of. */
export type ControllerEvent =
  | { readonly _tag: "Beat"; readonly now: number }
  /** A look at history and reports at one moment. */
  | {
      readonly _tag: "Read"
      readonly incarnation: string
      readonly entries: ReadonlyMap<number, LogEntry>
      readonly reports: ReadonlyArray<MemberReport>
    }
  | { readonly _tag: "Publish"; readonly wish: Wish }
  /** Nobody waits for a version of this content any more; it is not proposed where it was not yet. */
  | { readonly _tag: "Withdraw"; readonly content: string }

/** What a controller does. */
export type ControllerEffect =
  /** Look at history and reports. */
  | { readonly _tag: "Look" }
  | { readonly _tag: "Append"; readonly incarnation: string; readonly position: number; readonly entry: LogEntry }
  /** Entries before this number are not needed. */
  | { readonly _tag: "Forget"; readonly before: number }

/** A controller's next state and what to do. */
export type ControllerStep = readonly [state: ControllerState, effects: ReadonlyArray<ControllerEffect>]

/** A controller that knows nothing yet. */
export const newController = (id: string, times: FleetTimes): ControllerState => ({
  id,
  times,
  now: 0,
  incarnation: undefined,
  fleet: undefined,
  sinceIncarnation: 0,
  sinceRemoval: 0,
  sincePhase: 0,
  reports: new Map(),
  wishes: [],
  snapshotAt: 0
})

/** Entries after which the history is stated whole again. */
const snapshotEvery = 64

const is = (id: VersionId | null | undefined, { serial, content }: Manifest): boolean =>
  id?.serial === serial && id.content === content

/** The first entry: what the members knew, once all of them have said so or can serve no longer. */
const genesis = ({ reports, incarnation, sinceIncarnation, times }: ControllerState): LogEntry | undefined => {
  const isOver = sinceIncarnation >= times.fence + times.grace
  let best: FleetState | undefined
  const said = new Set<string>()
  for (const [id, { report }] of reports) {
    // Who has not seen yet that the store is empty may still learn something of the history that is lost.
    if (report.incarnation !== incarnation) continue
    said.add(id)
    if (knowsMore(report.knows, best)) best = report.knows!
  }
  const hasAll = best?.members.every(({ id }) => said.has(id)) ?? false
  if (!isOver && !hasAll) return undefined
  const state = best ?? emptyFleet
  // Who did not say so in time has stopped serving and has to ask again.
  const members = state.members.filter(({ id }) => said.has(id))
  return {
    _tag: "Genesis",
    state: { ...state, members, generation: state.generation + 1, position: 1, epoch: 1, removedAt: 1 }
  }
}

/** Who has lost its connection to another member, and is silent besides, is not waited for as long as who is only silent. */
const patienceWithMissed = ({ beat, dead }: FleetTimes): number => Math.min(dead, Math.max(2 * beat, dead / 4))

const removal = ({ fleet, reports, times, incarnation }: ControllerState): LogEntry | undefined => {
  const { members } = fleet!
  const missed = new Map<string, string>()
  for (const { id: by } of members) {
    const report = reports.get(by)?.report
    if (report === undefined || report.incarnation !== incarnation) continue
    for (const id of report.missed ?? []) if (id !== by) missed.set(id, by)
  }
  for (const { id } of members) {
    const silent = reports.get(id)?.silent ?? 0
    const by = missed.get(id)
    const limit = by === undefined ? times.dead : patienceWithMissed(times)
    if (silent < limit) continue
    const also = by === undefined ? "" : `, and its connection to ${by} has ended`
    return { _tag: "Remove", id, reason: `No sign of life for ${limit} s${also}.` }
  }
  return undefined
}

/** Replicas that a policy needs at least. */
export const neededBy = (policy: CommitPolicy): number =>
  policy._tag === "All" ? 0 : policy._tag === "Each" ? 1 : policy.count

/** How the open update goes on; undefined while there is nothing to do but wait. */
const progress = (state: ControllerState): LogEntry | undefined => {
  const { fleet, reports, sinceRemoval, sincePhase, times } = state
  const { open, members } = fleet!
  if (open === null) return undefined
  const { manifest, policy, isPrepared } = open
  const { serial } = manifest
  const replicas = members.filter(({ role }) => role === "replica")
  const reportOf = (id: string): MemberReport | undefined => {
    const report = reports.get(id)?.report
    return report?.incarnation === state.incarnation ? report : undefined
  }
  const has = (id: string): boolean => {
    const report = reportOf(id)
    return is(report?.staged, manifest) || is(report?.live, manifest)
  }
  const abort = (culprits: ReadonlyArray<string>, reason: string): LogEntry => ({
    _tag: "Abort",
    serial,
    culprits: culprits.length === 0 ? [open.by] : culprits,
    reason
  })
  const late = replicas.filter(({ id }) => !has(id)).map(({ id }) => id)
  const why = (ids: ReadonlyArray<string>): string =>
    ids
      .map((id) => reportOf(id)?.failure ?? "")
      .filter((text) => text !== "")
      .map((text) => ` ${text}`)
      .join("")
  // Nobody is admitted while an update is open, so who can get it from nobody now never will.
  const lost = late.filter((id) => is(reportOf(id)?.lost, manifest))
  const isServed = members.some(({ id, role }) => role === "source" || has(id))
  if (late.length > 0 && !isServed) return abort([open.by], "No source is left that has the version.")
  if (policy._tag !== "All") {
    const needed = neededBy(policy)
    // A replica of several processes has it when all of them do.
    const having = wholeReplicas(members).filter((ranks) => ranks.every(({ id }) => has(id))).length
    if (having >= needed) return { _tag: "Commit", serial }
    const possible = wholeReplicas(members).filter((ranks) => ranks.every(({ id }) => !lost.includes(id))).length
    if (possible < needed) return abort(lost, `Nobody is left who has it all.${why(lost)}`)
    if (sincePhase < times.stage) return undefined
    return abort(late, `${having} of ${needed} have it after ${times.stage} s.${why(late)}`)
  }
  if (lost.length > 0) return abort(lost, `Nobody is left who has it all.${why(lost)}`)
  if (!isPrepared) {
    // Whoever was removed has to have stopped serving before the others stop for this version.
    if (late.length === 0 && sinceRemoval >= times.fence + times.grace) return { _tag: "Prepare", serial }
    if (sincePhase < times.stage) return undefined
    return abort(late, `They had not staged and proven it after ${times.stage} s.${why(late)}`)
  }
  const unpaused = replicas.filter(({ id }) => !is(reportOf(id)?.paused, manifest)).map(({ id }) => id)
  if (unpaused.length === 0 && sinceRemoval >= times.fence + times.grace) return { _tag: "Commit", serial }
  if (sincePhase < times.prepare) return undefined
  return abort(unpaused, `They had not stopped serving after ${times.prepare} s.`)
}

const proposal = ({ fleet, wishes, id, reports }: ControllerState): LogEntry | undefined => {
  const { current, members, nextSerial, open } = fleet!
  if (open !== null) return undefined
  // Who came too late to say what it knew may have used a version of a greater number, and never goes below it.
  const highest = [...reports.values()].reduce((most, { report }) => Math.max(most, report.highest), 0)
  const serial = Math.max(nextSerial, highest + 1)
  const [wish] = wishes
  if (wish === undefined) {
    if (current === null || highest <= current.serial) return undefined
    return { _tag: "Propose", manifest: { ...current, serial }, policy: { _tag: "All" }, by: id }
  }
  // A publisher that is not yet admitted is no source of what it publishes, and nobody is admitted while an update is open.
  if (!members.some(({ role }) => role === "source")) return undefined
  const { label, content, tensors, base, policy } = wish
  // Nobody is admitted while an update is open, so one that needs more replicas than there are waits before it is.
  if (wholeReplicas(members).length < neededBy(policy)) return undefined
  const manifest = { serial, label, content, tensors, ...(base === undefined ? {} : { base }) }
  return { _tag: "Propose", manifest, policy, by: id }
}

/** What is due, at most one entry for each look. */
const due = (state: ControllerState): LogEntry | undefined => {
  const { fleet, snapshotAt } = state
  if (fleet === undefined) return genesis(state)
  const entry = removal(state) ?? progress(state) ?? proposal(state)
  if (entry !== undefined || fleet.position - snapshotAt < snapshotEvery) return entry
  return { _tag: "Snapshot", state: { ...fleet, position: fleet.position + 1 } }
}

const onRead = (state: ControllerState, event: ControllerEvent & { readonly _tag: "Read" }): ControllerStep => {
  const { incarnation, entries } = event
  const isNew = incarnation !== state.incarnation
  const before = isNew ? undefined : state.fleet
  const fleet = readLog(before, entries)
  const reports = new Map<string, { readonly report: MemberReport; readonly silent: number }>()
  for (const report of event.reports) {
    const known = isNew ? undefined : state.reports.get(report.member.id)
    reports.set(report.member.id, { report, silent: known?.report.beat === report.beat ? known.silent : 0 })
  }
  // A member without a report has been silent since this controller began to look.
  for (const member of fleet?.members ?? []) {
    if (reports.has(member.id)) continue
    const known = isNew ? undefined : state.reports.get(member.id)
    // A report goes with its process, or with a connection that is soon there again.
    const isLost = known !== undefined && known.report.beat >= 0
    const silent = Math.max(known?.silent ?? 0, isLost ? state.times.dead / 2 : 0)
    const nothing = { incarnation: null, live: null, staged: null, paused: null, highest: 0, failure: "", knows: null }
    reports.set(member.id, { report: { member, beat: -1, ...nothing }, silent })
  }
  const isSamePhase =
    before?.open?.manifest.serial === fleet?.open?.manifest.serial &&
    before?.open?.isPrepared === fleet?.open?.isPrepared
  const mine = fleet?.open?.by === state.id ? fleet.open.manifest : undefined
  const next: ControllerState = {
    ...state,
    incarnation,
    fleet,
    reports,
    sinceIncarnation: isNew ? 0 : state.sinceIncarnation,
    sinceRemoval: before?.removedAt === fleet?.removedAt ? state.sinceRemoval : 0,
    sincePhase: isSamePhase ? state.sincePhase : 0,
    wishes: mine !== undefined && state.wishes[0]?.content === mine.content ? state.wishes.slice(1) : state.wishes,
    snapshotAt: [...entries].reduce(
      (last, [at, { _tag }]) => (_tag === "Snapshot" || _tag === "Genesis" ? Math.max(last, at) : last),
      isNew ? 0 : state.snapshotAt
    )
  }
  const effects: Array<ControllerEffect> = []
  if (next.snapshotAt > 1 && entries.has(next.snapshotAt - 1)) effects.push({ _tag: "Forget", before: next.snapshotAt })
  const entry = due(next)
  if (entry !== undefined) effects.push({ _tag: "Append", incarnation, position: (fleet?.position ?? 0) + 1, entry })
  return [next, effects]
}

/** What an event makes of a controller. */
export const controllerStep = (state: ControllerState, event: ControllerEvent): ControllerStep => {
  switch (event._tag) {
    case "Beat": {
      const passed = Math.min(Math.max(0, event.now - state.now), 2 * state.times.beat)
      const reports = new Map(
        [...state.reports].map(([id, { report, silent }]) => [id, { report, silent: silent + passed }] as const)
      )
      const next: ControllerState = {
        ...state,
        now: Math.max(state.now, event.now),
        reports,
        sinceIncarnation: state.sinceIncarnation + passed,
        sinceRemoval: state.sinceRemoval + passed,
        sincePhase: state.sincePhase + passed
      }
      return [next, [{ _tag: "Look" }]]
    }
    case "Read":
      return onRead(state, event)
    case "Publish":
      return [{ ...state, wishes: [...state.wishes, event.wish] }, []]
    case "Withdraw":
      return [{ ...state, wishes: state.wishes.filter(({ content }) => content !== event.content) }, []]
  }
}
