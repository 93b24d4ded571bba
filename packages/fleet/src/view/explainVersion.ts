// SPDX-License-Identifier: Apache-2.0
/**
 * The life of one version, step by step: who was slow, who kept it from being committed, and what to do. Pure. It tells what
 * the history and the statements of members that run still know.
 */
import { median } from "@tensorferry/core/base/Numbers"
import { type LogEntry, readLog } from "../version/FleetLog.ts"
import type { Seen } from "./FleetView.ts"
import { type MemberName, namesOf, type Taken, type UpdateView, updatesOf } from "./updates.ts"

/** Something that happened to a version. */
export interface ExplainedStep {
  /** Milliseconds since 1970 as whoever acted stated it; null where nobody did. */
  readonly at: number | null
  readonly what: "proposed" | "staged" | "prepared" | "removed" | "committed" | "aborted" | "live"
  /** Who did it, or to whom it happened. */
  readonly member: MemberName | null
  /** Why, where there is a reason. */
  readonly reason: string
}

/** A version's life. */
export interface Explained {
  readonly update: UpdateView
  /** In the order in which they happened, as far as clocks agree. */
  readonly steps: ReadonlyArray<ExplainedStep>
  /** Members that took more than twice as long as the middle of all. */
  readonly slow: ReadonlyArray<Taken>
  /** The middle of the times that members took; null where none is known. */
  readonly medianSeconds: number | null
  /** What to do, in words; empty where there is nothing to do. */
  readonly advice: ReadonlyArray<string>
}

/** A member took longer than this many times the middle, and so much longer in seconds. */
const slowTimes = 2
const slowSeconds = 0.5

const who = ({ id, rank, host }: MemberName): string =>
  `${rank === null ? `member ${id}` : `rank ${rank}`}${host === null ? "" : ` on ${host}`}`

/** Removals while it was open, as far as their entries still stand. */
const removalsOf = (
  serial: number,
  entries: ReadonlyMap<number, LogEntry>,
  name: (id: string) => MemberName
): ReadonlyArray<ExplainedStep> => {
  const steps: Array<ExplainedStep> = []
  let isOpen = false
  for (const [, entry] of [...entries].sort(([a], [b]) => a - b)) {
    if (entry._tag === "Propose") isOpen = entry.manifest.serial === serial
    else if ((entry._tag === "Commit" || entry._tag === "Abort") && entry.serial === serial) isOpen = false
    else if (entry._tag === "Remove" && isOpen)
      steps.push({ at: entry.at ?? null, what: "removed", member: name(entry.id), reason: entry.reason })
  }
  return steps
}

const adviceFor = (
  update: UpdateView,
  slow: ReadonlyArray<Taken>,
  removed: ReadonlyArray<ExplainedStep>,
  failures: ReadonlyMap<string, string>
): ReadonlyArray<string> => {
  const lines: Array<string> = []
  const { outcome, culprits, isPrepared, reason, pauseSeconds } = update
  for (const culprit of outcome === "aborted" ? culprits : []) {
    const failure = failures.get(culprit.id) ?? ""
    if (failure !== "") lines.push(`${who(culprit)} failed last with: ${failure}`)
    else if (isPrepared) {
      lines.push(
        `${who(culprit)} had not stopped serving in time: see which programs hold the version in use, or wait longer with \`prepare\`.`
      )
    } else if (culprit.host === null) {
      lines.push(`${who(culprit)} is not there any more: see why its process ended, and start another with its rank.`)
    } else
      lines.push(`${who(culprit)} was not done in time: see its link and its givers, or wait longer with \`stage\`.`)
  }
  if (outcome === "aborted" && reason.includes("No source")) {
    lines.push("Start a source, or a replica that has this version, and publish it again.")
  } else if (outcome === "aborted") lines.push("The version before is still in use; publish again when this is mended.")
  for (const { member, reason: why } of removed) {
    if (member !== null) lines.push(`${who(member)} was removed meanwhile: ${why}`)
  }
  if (slow.length > 0) {
    const [first] = slow
    const others = slow.length === 1 ? "" : `, and ${slow.length - 1} more were slow`
    lines.push(`${who(first!)} was the slowest${others}: see its link, its disk and what else runs on its machine.`)
  }
  if (pauseSeconds !== null && pauseSeconds > 1) {
    lines.push(`Replicas stood still for ${pauseSeconds.toFixed(1)} s: programs that use a version should be short.`)
  }
  return lines
}

/** Undefined where neither the history nor an open update has the version. */
export const explainVersion = (seen: Seen, serial: number): Explained | undefined => {
  const { look, progress } = seen
  const fleet = readLog(undefined, look.entries)
  const update = updatesOf(fleet, look, progress).find((each) => each.serial === serial)
  if (update === undefined) return undefined
  const name = namesOf(fleet, look, progress)
  const removed = removalsOf(serial, look.entries, name)
  const steps: Array<ExplainedStep> = [
    { at: update.proposedAt, what: "proposed", member: update.by, reason: "" },
    ...update.taken.flatMap((taken): ReadonlyArray<ExplainedStep> => {
      const { id, rank, host, stagedAt, liveAt } = taken
      const member = { id, rank, host }
      return [
        ...(stagedAt === null ? [] : [{ at: stagedAt, what: "staged", member, reason: "" } as const]),
        ...(liveAt === null ? [] : [{ at: liveAt, what: "live", member, reason: "" } as const])
      ]
    }),
    ...removed
  ]
  if (update.isPrepared) steps.push({ at: update.preparedAt, what: "prepared", member: null, reason: "" })
  if (update.outcome !== "open") {
    steps.push({ at: update.endedAt, what: update.outcome, member: null, reason: update.reason })
  }
  const times = update.taken.flatMap(({ seconds }) => (seconds === null ? [] : [seconds]))
  const middle = times.length === 0 ? null : median(times)
  const isSlow = ({ seconds }: Taken): boolean =>
    middle !== null && seconds !== null && seconds > slowTimes * middle && seconds - middle > slowSeconds
  const slow = update.taken.filter(isSlow)
  const failures = new Map(look.reports.map(({ member, failure }) => [member.id, failure]))
  return {
    update,
    steps: steps.sort((a, b) => (a.at ?? 0) - (b.at ?? 0)),
    slow,
    medianSeconds: middle,
    advice: adviceFor(update, slow, removed, failures)
  }
}
