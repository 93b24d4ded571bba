// SPDX-License-Identifier: Apache-2.0
/**
 * Where the time of every rank went: its phases one after another on one scale, the steps of its copy likewise, and from whom
 * it received how fast. Who was late or slow is marked by words, not by colour alone.
 */
import { type JobPhase, jobPhases, phaseNames } from "../job/phases.ts"
import { formatBytes, formatRate, formatSeconds } from "../text/Table.ts"
import { escapeHtml, fraction } from "./html.ts"
import { lateRankOf, type Pace, pacesOf } from "./pace.ts"
import type { RecordedRank, RunRecord } from "./RunRecord.ts"

export const copySteps = [
  "handshake",
  "prepare",
  "pack",
  "local",
  "transfer",
  "unpack",
  "writeback",
  "outcome"
] as const
type CopyStep = (typeof copySteps)[number]

/** Colours of the timeline, for the same things. */
const phaseKinds: Readonly<Record<JobPhase, string>> = {
  ranks: "frame",
  start: "plan",
  open: "plan",
  plan: "plan",
  allocate: "stage",
  load: "file",
  wait: "agree",
  copy: "wire",
  verify: "verify",
  prove: "verify",
  write: "file",
  finish: "frame",
  release: "stage"
}

const stepKinds: Readonly<Record<CopyStep, string>> = {
  handshake: "agree",
  prepare: "plan",
  pack: "stage",
  local: "local",
  transfer: "wire",
  unpack: "stage",
  writeback: "stage",
  outcome: "agree"
}

interface Part {
  readonly name: string
  readonly kind: string
  readonly seconds: number
}

/** Shorter parts cannot be seen. */
const leastPart = 1e-3

/** The start of ranks is apart: it is the machine's, and dwarfs a small job. */
const jobParts = ({ seconds }: RecordedRank): ReadonlyArray<Part> =>
  jobPhases
    .filter((phase) => phase !== "ranks")
    .map((phase) => ({ name: phaseNames[phase], kind: phaseKinds[phase], seconds: seconds[phase] ?? 0 }))

const copyParts = ({ copy }: RecordedRank): ReadonlyArray<Part> =>
  copySteps.map((step) => ({ name: step, kind: stepKinds[step], seconds: copy.phases[step] }))

const sumOf = (parts: ReadonlyArray<Part>): number => parts.reduce((sum, { seconds }) => sum + seconds, 0)

const bars = (parts: ReadonlyArray<Part>, whole: number): string => {
  let start = 0
  const shown: Array<string> = []
  for (const { name, kind, seconds } of parts) {
    if (seconds / whole >= leastPart) {
      const title = `${name}: ${formatSeconds(seconds)}`
      shown.push(
        `<span class="bar ${kind}" data-name="${escapeHtml(name)}" style="--s:${fraction(start, whole)};--d:${fraction(seconds, whole)};--r:0" title="${escapeHtml(title)}">${escapeHtml(name)}</span>`
      )
    }
    start += seconds
  }
  return shown.join("")
}

const rowsOf = (
  ranks: ReadonlyArray<RecordedRank>,
  partsOf: (rank: RecordedRank) => ReadonlyArray<Part>,
  whole: number,
  noteOf: (rank: RecordedRank) => string
): string =>
  ranks
    .map((rank) => {
      const parts = partsOf(rank)
      const said = parts
        .filter(({ seconds }) => seconds > 0)
        .map(({ name, seconds }) => `${name} ${formatSeconds(seconds)}`)
      return `<div class="laneName">rank ${rank.rank}</div><div class="lane" role="img" aria-label="${escapeHtml(`rank ${rank.rank}: ${said.join(", ")}`)}" style="--rows:1">${bars(parts, whole)}</div><div class="laneNote">${formatSeconds(sumOf(parts))}${noteOf(rank)}</div>`
    })
    .join("\n")

const legendOf = (ranks: ReadonlyArray<RecordedRank>, partsOf: (rank: RecordedRank) => ReadonlyArray<Part>): string => {
  const seen = new Map<string, Part>()
  for (const rank of ranks) for (const part of partsOf(rank)) if (part.seconds > 0) seen.set(part.name, part)
  const byKind = Map.groupBy(seen.values(), ({ kind }) => kind)
  return `<ul class="legend">${[...byKind]
    .map(
      ([kind, parts]) =>
        `<li><span class="swatch ${kind}"></span>${escapeHtml(parts.map(({ name }) => name).join(", "))}</li>`
    )
    .join("")}</ul>`
}

/** Ranks of more than this are in the tables and the timeline. */
const mostRanks = 256

const mark = (text: string): string => ` <span class="badge warn">${text}</span>`

/** Which ranks a rank received from too slowly. */
const slowNote = (paces: ReadonlyArray<Pace>, { rank }: RecordedRank): string => {
  const slow = paces.filter(({ to, isSlow }) => to === rank && isSlow)
  return slow.length === 0 ? "" : mark(`slow from ${slow.map(({ from }) => from).join(", ")}`)
}

/** Phases of every rank, one chart; `whole` is what the full width is. */
export const phaseWaterfall = (record: RunRecord, whole?: number): string => {
  const ranks = record.ranks.slice(0, mostRanks)
  const late = lateRankOf(record)
  const scale = whole ?? longestJob(record)
  return `<div class="waterfall">${rowsOf(ranks, jobParts, scale, ({ rank }) => (rank === late ? mark("others waited") : ""))}</div>`
}

/** Seconds of the rank whose job took longest. */
export const longestJob = ({ ranks }: RunRecord): number =>
  ranks.reduce((most, rank) => Math.max(most, sumOf(jobParts(rank))), 1e-9)

export const waterfalls = (record: RunRecord): string => {
  const { ranks } = record
  const shown = ranks.slice(0, mostRanks)
  const paces = pacesOf(record)
  const whole = ranks.reduce((most, rank) => Math.max(most, sumOf(copyParts(rank))), 1e-9)
  const left = ranks.length - shown.length
  return `${legendOf(shown, jobParts)}${phaseWaterfall(record)}
<h3>The copy</h3>${legendOf(shown, copyParts)}<div class="waterfall">${rowsOf(shown, copyParts, whole, (rank) => slowNote(paces, rank))}</div>${left > 0 ? `<p class="quiet">${left} more ranks are in the tables below.</p>` : ""}`
}

/** A pair's rate in words; empty where it was not measured. */
export const rateOf = ({ bytes, seconds }: Pace): string => formatRate(bytes, seconds)

/** What a pair moved, for a title. */
export const paceTitle = (pace: Pace): string =>
  [formatBytes(pace.bytes), ...(rateOf(pace) === "" ? [] : [rateOf(pace)]), ...(pace.isSlow ? ["slow"] : [])].join(", ")
