// SPDX-License-Identifier: Apache-2.0
/**
 * What the page shows, as it travels: rows of a few short fields. After the first whole view only what has changed is sent,
 * so that a fleet of a thousand members at rest costs nothing. Pure.
 */
import type { FleetView, MemberView } from "@tensorferry/fleet/view/FleetView"
import type { FlowView, TreeView } from "@tensorferry/fleet/view/flow"
import type { MemberName, UpdateView } from "@tensorferry/fleet/view/updates"
import { isTroubled } from "../fleet/fleetText.ts"
import {
  memberText,
  outcomeText,
  percent,
  policyText,
  removalText,
  stateText,
  versionText,
  whyText
} from "../fleet/words.ts"
import { linkKey } from "./Rates.ts"

/** One member. */
export interface MemberRow {
  readonly id: string
  readonly rank: number
  readonly role: string
  readonly host: string
  readonly process: number | null
  readonly version: string
  readonly serial: number
  readonly state: string
  /** The state with how far it is. */
  readonly said: string
  /** Whole seconds of silence; 0 below two. */
  readonly silent: number
  readonly isServing: boolean
  readonly failure: string
  readonly received: number
  readonly isTroubled: boolean
}

/** One update. Times are seconds. */
export interface UpdateRow {
  readonly serial: number
  readonly label: string
  readonly policy: string
  readonly outcome: "open" | "committed" | "aborted"
  readonly said: string
  readonly seconds: number | null
  /** From the proposal until members were told to stop serving, or to the end. */
  readonly staging: number | null
  readonly pause: number | null
  readonly endedAt: number | null
  /** The slowest three, with how long they took or how far they are. */
  readonly slow: ReadonlyArray<readonly [who: string, seconds: number | null, percent: string]>
  readonly why: string
}

/** A node of a tree, without how far it is. */
export type NodeRow = readonly [id: string, rank: number, depth: number, start: number, end: number, bytes: number]

/** The trees of one version. */
export interface Shape {
  readonly serial: number
  readonly trees: ReadonlyArray<{
    readonly stripe: number
    readonly depth: number
    readonly nodes: ReadonlyArray<NodeRow>
  }>
}

/** Bytes between two members. */
export interface LinkRow {
  readonly key: string
  readonly from: string
  readonly to: string
  readonly bytes: number
  readonly done: number
  /** Bytes per second now. */
  readonly rate: number
}

/** The line at the top. */
export interface Head {
  readonly name: string
  readonly version: string
  /** Of the open update, or null. */
  readonly open: {
    readonly serial: number
    readonly name: string
    readonly policy: string
    readonly phase: string
  } | null
  /** Bytes of the open or last update: all, and those that have arrived. */
  readonly bytes: number
  readonly done: number
  /** Bytes per second now, of all links. */
  readonly rate: number
  readonly proposedAt: number | null
  /** Who was left out lately, and why. */
  readonly removed: ReadonlyArray<string>
  /** Why the store could not be looked at; empty while it can. */
  readonly trouble: string
}

/** Everything. */
export interface PageView {
  readonly head: Head
  readonly members: ReadonlyArray<MemberRow>
  readonly updates: ReadonlyArray<UpdateRow>
  readonly shape: Shape | null
  /** Parts of 1000 that have arrived, of every node of every tree. */
  readonly fill: ReadonlyArray<ReadonlyArray<number>>
  readonly links: ReadonlyArray<LinkRow>
}

/** What has changed; what is left out has not. */
export interface PageChange {
  readonly head?: Head
  readonly members?: ReadonlyArray<MemberRow>
  readonly gone?: ReadonlyArray<string>
  readonly updates?: ReadonlyArray<UpdateRow>
  readonly shape?: Shape | null
  readonly fill?: ReadonlyArray<ReadonlyArray<number>>
  readonly links?: ReadonlyArray<LinkRow>
}

/** Links that a page lists. */
const mostLinks = 2000

const memberRow = (member: MemberView): MemberRow => ({
  id: member.id,
  rank: member.rank,
  role: member.role,
  host: member.host ?? "",
  process: member.process,
  version: versionText(member.version),
  serial: member.version?.serial ?? 0,
  state: member.state,
  said: stateText(member),
  silent: member.silentSeconds === null || member.silentSeconds < 2 ? 0 : Math.floor(member.silentSeconds),
  isServing: member.isServing,
  failure: member.failure,
  received: member.receivedBytes ?? 0,
  isTroubled: isTroubled(member)
})

const updateRow = (update: UpdateView): UpdateRow => ({
  serial: update.serial,
  label: update.label,
  policy: policyText(update.policy),
  outcome: update.outcome,
  said: outcomeText(update),
  seconds: update.seconds,
  staging: update.seconds === null ? null : update.seconds - (update.pauseSeconds ?? 0),
  pause: update.pauseSeconds,
  endedAt: update.endedAt,
  slow: update.taken.slice(0, 3).map((taken) => [memberText(taken), taken.seconds, percent(taken.fraction)]),
  why: whyText(update)
})

const rounded = (value: number): number => Math.round(value * 1e6) / 1e6

const shapeOf = ({ serial, trees }: FlowView): Shape => ({
  serial,
  trees: trees.map(({ stripe, depth, nodes }) => ({
    stripe,
    depth,
    nodes: nodes.map(({ id, rank, depth: row, start, end, bytes }) => [
      id,
      rank,
      row,
      rounded(start),
      rounded(end),
      bytes
    ])
  }))
})

const fillOf = ({ nodes }: TreeView): ReadonlyArray<number> =>
  nodes.map(({ bytes, done }) => (bytes === 0 ? 1000 : Math.floor((1000 * done) / bytes)))

const linkRows = (
  flow: FlowView,
  nameOf: (id: string) => string,
  rates: ReadonlyMap<string, number>
): ReadonlyArray<LinkRow> =>
  flow.links.slice(0, mostLinks).map((link) => ({
    key: linkKey(link),
    from: nameOf(link.from),
    to: nameOf(link.to),
    bytes: link.bytes,
    done: link.done,
    rate: Math.round(rates.get(linkKey(link)) ?? 0)
  }))

/** A fleet as the page shows it; `trouble` is why the store could not be looked at, or empty. */
export const pageViewOf = (view: FleetView, rates: ReadonlyMap<string, number>, trouble: string): PageView => {
  const { flow, members, updates } = view
  const [newest] = updates
  const byId = new Map<string, MemberName>(members.map(({ id, rank, host }) => [id, { id, rank, host }]))
  const nameOf = (id: string): string => memberText(byId.get(id) ?? { id, rank: null, host: null })
  const sum = (of: "bytes" | "done"): number => (flow?.links ?? []).reduce((total, link) => total + link[of], 0)
  const isOpen = newest?.outcome === "open"
  return {
    head: {
      name: view.name,
      version: versionText(view.current),
      open: isOpen
        ? {
            serial: newest.serial,
            name: versionText(newest),
            policy: policyText(newest.policy),
            phase: newest.isPrepared ? "stopping" : "staging"
          }
        : null,
      bytes: sum("bytes"),
      done: sum("done"),
      rate: Math.round([...rates.values()].reduce((total, rate) => total + rate, 0)),
      proposedAt: isOpen ? newest.proposedAt : null,
      removed: view.removals.slice(0, 4).map(removalText),
      trouble
    },
    members: members.map(memberRow),
    updates: updates.map(updateRow),
    shape: flow === null ? null : shapeOf(flow),
    fill: flow === null ? [] : flow.trees.map(fillOf),
    links: flow === null ? [] : linkRows(flow, nameOf, rates)
  }
}

const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b)

/** Rows that are new or other than before. */
const changedRows = <A>(
  before: ReadonlyArray<A>,
  after: ReadonlyArray<A>,
  keyOf: (row: A) => string
): ReadonlyArray<A> => {
  const known = new Map(before.map((row) => [keyOf(row), row]))
  return after.filter((row) => {
    const old = known.get(keyOf(row))
    return old === undefined || !isSame(old, row)
  })
}

/** What a page that shows `before` lacks; undefined where it lacks nothing. */
export const changeBetween = (before: PageView, after: PageView): PageChange | undefined => {
  const ids = new Set(after.members.map(({ id }) => id))
  const members = changedRows(before.members, after.members, ({ id }) => id)
  const gone = before.members.flatMap(({ id }) => (ids.has(id) ? [] : [id]))
  const isReshaped = !isSame(before.shape, after.shape)
  const links = isReshaped ? after.links : changedRows(before.links, after.links, ({ key }) => key)
  const change: PageChange = {
    ...(isSame(before.head, after.head) ? {} : { head: after.head }),
    ...(members.length === 0 ? {} : { members }),
    ...(gone.length === 0 ? {} : { gone }),
    ...(isSame(before.updates, after.updates) ? {} : { updates: after.updates }),
    ...(isReshaped ? { shape: after.shape } : {}),
    ...(isReshaped || !isSame(before.fill, after.fill) ? { fill: after.fill } : {}),
    ...(links.length === 0 && !isReshaped ? {} : { links })
  }
  return Object.keys(change).length === 0 ? undefined : change
}
