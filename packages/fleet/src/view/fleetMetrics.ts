// SPDX-License-Identifier: Apache-2.0
/**
 * A fleet in the text form that Prometheus reads. Series of members follow the members that there are: a registry of metrics
 * would go on stating those that are gone, which is why none is used. Pure.
 */
import { type FleetView, memberConditions } from "./FleetView.ts"
import { shortId } from "./updates.ts"

/** The media type of what `fleetMetrics` makes. */
export const metricsType = "text/plain; version=0.0.4; charset=utf-8"

/** What whoever looks adds to a view. */
export interface MetricsFacts {
  /** Whether the last look at the store succeeded. */
  readonly isStoreUp: boolean
  /** How long it took. */
  readonly lookSeconds: number
  /** Updates that have ended since this process began to look, and those that the history had then. */
  readonly ended: { readonly committed: number; readonly aborted: number }
}

type Labels = Readonly<Record<string, string | number>>
type Sample = readonly [labels: Labels, value: number]

const escapeLabel = (text: string): string =>
  text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll('"', '\\"')

const labelsText = (labels: Labels): string => {
  const all = Object.entries(labels).map(([name, value]) => `${name}="${escapeLabel(String(value))}"`)
  return all.length === 0 ? "" : `{${all.join(",")}}`
}

const family = (name: string, type: "gauge" | "counter", help: string, samples: ReadonlyArray<Sample>): string => {
  if (samples.length === 0) return ""
  const lines = samples.map(([labels, value]) => `${name}${labelsText(labels)} ${value}\n`)
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join("")}`
}

/** Everything of one fleet. `view` is undefined where the store has never been reached. */
export const fleetMetrics = (name: string, view: FleetView | undefined, facts: MetricsFacts): string => {
  const fleet = { fleet: name }
  const own = [
    family("tensorferry_fleet_store_up", "gauge", "Whether the last look at the store succeeded.", [
      [fleet, facts.isStoreUp ? 1 : 0]
    ]),
    family("tensorferry_fleet_look_seconds", "gauge", "How long the last look at the store took.", [
      [fleet, facts.lookSeconds]
    ]),
    family("tensorferry_fleet_updates_total", "counter", "Updates that have ended, by outcome.", [
      [{ ...fleet, outcome: "committed" }, facts.ended.committed],
      [{ ...fleet, outcome: "aborted" }, facts.ended.aborted]
    ])
  ]
  if (view === undefined) return own.join("")
  const { members, updates, current, flow } = view
  const [newest] = updates
  const last = updates.find(({ outcome }) => outcome !== "open")
  const of = (member: FleetView["members"][number]): Labels => ({
    ...fleet,
    member: shortId(member.id),
    rank: member.rank,
    role: member.role,
    host: member.host ?? ""
  })
  const each = (value: (member: FleetView["members"][number]) => number | null): ReadonlyArray<Sample> =>
    members.flatMap((member) => {
      const found = value(member)
      return found === null ? [] : [[of(member), found] as const]
    })
  const counts = new Map<string, number>()
  for (const { role, state } of members) counts.set(`${role} ${state}`, (counts.get(`${role} ${state}`) ?? 0) + 1)
  const byState = (["source", "replica"] as const).flatMap((role) =>
    memberConditions
      .filter((state) => (state === "source" ? role === "source" : role === "replica" || /joining|silent/.test(state)))
      .map((state): Sample => [{ ...fleet, role, state }, counts.get(`${role} ${state}`) ?? 0])
  )
  const moved = (flow?.links ?? []).reduce((sum, { done }) => sum + done, 0)
  const due = (flow?.links ?? []).reduce((sum, { bytes }) => sum + bytes, 0)
  const known = (value: number | null | undefined): ReadonlyArray<Sample> => (value == null ? [] : [[fleet, value]])
  return [
    ...own,
    family("tensorferry_fleet_members", "gauge", "Members by role and state.", byState),
    family("tensorferry_fleet_version", "gauge", "Number of the version in use; 0 before the first.", [
      [fleet, current?.serial ?? 0]
    ]),
    family("tensorferry_fleet_update_open", "gauge", "Whether an update is neither committed nor given up.", [
      [fleet, newest?.outcome === "open" ? 1 : 0]
    ]),
    family("tensorferry_fleet_flow_bytes", "gauge", "Bytes that the last update moves between members.", known(due)),
    family("tensorferry_fleet_flow_done_bytes", "gauge", "Bytes of the last update that have arrived.", known(moved)),
    family(
      "tensorferry_fleet_last_update_seconds",
      "gauge",
      "From the proposal of the last ended update to its end.",
      known(last?.seconds)
    ),
    family(
      "tensorferry_fleet_last_pause_seconds",
      "gauge",
      "For how long replicas did not serve in the last ended update.",
      known(last?.pauseSeconds)
    ),
    family("tensorferry_fleet_history_entries", "gauge", "Number of the last entry of the history.", [
      [fleet, view.position]
    ]),
    family(
      "tensorferry_fleet_member_version",
      "gauge",
      "Number of the version that a replica has in use; 0 where it has none.",
      each(({ role, version }) => (role === "source" ? null : (version?.serial ?? 0)))
    ),
    family(
      "tensorferry_fleet_member_heartbeat_age_seconds",
      "gauge",
      "Seconds since the last sign of life of a member.",
      each(({ silentSeconds }) => silentSeconds)
    ),
    family(
      "tensorferry_fleet_member_received_bytes_total",
      "counter",
      "Bytes that a member has received since it started.",
      each(({ receivedBytes }) => receivedBytes)
    )
  ].join("")
}
