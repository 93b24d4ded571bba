// SPDX-License-Identifier: Apache-2.0
/** A fleet as text for terminals: members, history, and the tree of an update as it fills up. */
import type { FleetView, MemberView } from "@tensorferry/fleet/view/FleetView"
import type { FlowView, TreeNode } from "@tensorferry/fleet/view/flow"
import type { UpdateView } from "@tensorferry/fleet/view/updates"
import { counted, formatBytes, table } from "../text/Table.ts"
import {
  durationText,
  memberText,
  outcomeText,
  percent,
  policyText,
  removalText,
  slowestText,
  stateText,
  versionText,
  whyText
} from "./words.ts"

/** Members that somebody should look at. */
export const isTroubled = ({ state, failure }: MemberView): boolean => state === "silent" || failure !== ""

/** `1 source; 8 of 9 replicas serve (7 receiving, 1 staged, 1 silent)`. */
const countText = (members: ReadonlyArray<MemberView>): string => {
  const replicas = members.filter(({ role }) => role === "replica")
  const sources = counted(members.length - replicas.length, "source")
  if (replicas.length === 0) return `${sources}; no replicas`
  const states = Map.groupBy(replicas, ({ state }) => state)
  const by = [...states].sort(([, a], [, b]) => b.length - a.length).map(([state, all]) => `${all.length} ${state}`)
  const serving = replicas.filter(({ isServing }) => isServing).length
  return `${sources}; ${serving} of ${counted(replicas.length, "replica")} serve${replicas.length === 1 ? "s" : ""} (${by.join(", ")})`
}

/** How much of an update has arrived. */
export const flowText = ({ links }: FlowView): string => {
  const [bytes, done] = [
    links.reduce((sum, link) => sum + link.bytes, 0),
    links.reduce((sum, link) => sum + link.done, 0)
  ]
  return `${percent(bytes === 0 ? 0 : done / bytes)} of ${formatBytes(bytes)} has arrived`
}

/** What happens now, in a line. `now` is milliseconds since 1970. */
const openText = (update: UpdateView, flow: FleetView["flow"], now: number): string => {
  const since = update.proposedAt === null ? "" : ` for ${durationText(Math.max(0, now - update.proposedAt) / 1000)}`
  const arrived = flow?.serial === update.serial ? `, ${flowText(flow)}` : ""
  return `Update ${versionText(update)} (${policyText(update.policy)}) is ${outcomeText(update).replace("open:", `open${since}:`)}${arrived}.`
}

/** The first lines of every form. */
export const headText = (view: FleetView, now: number): string => {
  const { name, current, members, updates } = view
  const [newest] = updates
  const lines = [
    `Fleet ${name}: ${current === null ? "no version yet" : `version ${versionText(current)}`}. ${countText(members)}.`
  ]
  if (newest?.outcome === "open") lines.push(openText(newest, view.flow, now))
  return lines.join("\n")
}

/** Names of machines without their domain, where that tells all of them apart. */
const shortHosts = (members: ReadonlyArray<MemberView>): ((host: string) => string) => {
  const hosts = new Set(members.flatMap(({ host }) => (host === null ? [] : [host])))
  const shortOf = (host: string): string => (/^[\d.]+$/.test(host) ? host : host.split(".")[0]!)
  const isClear = new Set([...hosts].map(shortOf)).size === hosts.size
  return isClear ? shortOf : (host) => host
}

/** Those who need a look come first where not all can be shown. */
const inOrder = (members: ReadonlyArray<MemberView>, most: number): ReadonlyArray<MemberView> =>
  members.length <= most ? members : [...members].sort((a, b) => Number(isTroubled(b)) - Number(isTroubled(a)))

/** All members, and below them what is wrong with some. */
export const membersText = (view: FleetView, limit?: number, most = 256): string => {
  const shown = inOrder(view.members, most)
  const hostText = shortHosts(view.members)
  const rows = shown
    .slice(0, most)
    .map((member) => [
      String(member.rank),
      member.role,
      member.host === null ? "–" : hostText(member.host),
      versionText(member.version),
      stateText(member),
      durationText(member.silentSeconds)
    ])
  const failures = shown.filter(({ failure }) => failure !== "")
  const notes = [
    ...failures.slice(0, 8).map((member) => `${memberText(member)} failed last with: ${member.failure}`),
    ...view.removals.slice(0, 4).map(removalText)
  ]
  return [
    table(
      ["rank", "role", "host", "version", "state", "heartbeat"],
      rows,
      ["right", "left", "left", "left", "left", "right"],
      limit
    ),
    ...(view.members.length > most ? [`… and ${counted(view.members.length - most, "more member")}`] : []),
    ...(notes.length === 0 ? [] : [""]),
    ...notes
  ].join("\n")
}

/** Updates as a table, newest first. */
export const historyText = (updates: ReadonlyArray<UpdateView>, limit?: number): string =>
  table(
    ["version", "label", "policy", "outcome", "took", "paused", "slowest", "why"],
    updates.map((update) => [
      String(update.serial),
      update.label,
      policyText(update.policy),
      outcomeText(update),
      durationText(update.seconds),
      durationText(update.pauseSeconds),
      slowestText(update),
      whyText(update)
    ]),
    ["right", "left", "left", "left", "right", "right", "left", "left"],
    limit
  )

const barWidth = 10

const nodeText = ({ rank, id, bytes, done, parent }: TreeNode, hostOf: (id: string) => string | null): string => {
  const name = memberText({ id, rank: rank < 0 ? null : rank, host: hostOf(id) })
  if (parent < 0 && bytes === 0) return name
  const filled = bytes === 0 ? 0 : Math.floor((barWidth * done) / bytes)
  return `${"█".repeat(filled)}${"░".repeat(barWidth - filled)} ${percent(bytes === 0 ? 0 : done / bytes).padStart(4)} ${name}`
}

/** The trees of an update, each member below the one that it gets bytes from; longer lines than `limit` are cut. */
export const treesText = (view: FleetView, limit = Number.POSITIVE_INFINITY, most = 24): string => {
  if (view.flow === null) return ""
  const hostText = shortHosts(view.members)
  const hosts = new Map(view.members.map(({ id, host }) => [id, host === null ? null : hostText(host)]))
  const { trees } = view.flow
  const lines = trees.flatMap(({ nodes }, at) => [
    ...(trees.length === 1 ? [] : [`tree ${at + 1} of ${trees.length}`]),
    ...nodes.map((node) => `${"  ".repeat(Math.min(8, node.depth))}${nodeText(node, (id) => hosts.get(id) ?? null)}`)
  ])
  const shown = lines.slice(0, most).map((line) => (line.length > limit ? `${line.slice(0, limit - 1)}…` : line))
  const left = lines.length - most
  return [...shown, ...(left > 0 ? [`… and ${counted(left, "more line")}`] : [])].join("\n")
}

/** Everything that a terminal shows of a fleet at one moment. */
export const watchText = (view: FleetView, now: number, limit?: number): string => {
  const [newest] = view.updates
  const trees = newest?.outcome === "open" ? treesText(view, limit) : ""
  return [
    headText(view, now),
    ...(trees === "" ? [] : [trees]),
    membersText(view, limit, 32),
    ...(view.updates.length === 0 ? [] : [historyText(view.updates.slice(0, 5), limit)])
  ].join("\n\n")
}
