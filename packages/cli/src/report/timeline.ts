// SPDX-License-Identifier: Apache-2.0
/** What every rank did when: phases as nested bars, on one scale that the page's script can narrow. */
import { formatSeconds } from "../text/Table.ts"
import { escapeHtml, fraction } from "./html.ts"
import type { RecordedPhase, RecordedRank, RunRecord } from "./RunRecord.ts"

/** Bars in all: the longest, where there are more. */
const barLimit = 20_000

const kinds: ReadonlyArray<readonly [kind: string, about: string, names: RegExp]> = [
  ["wire", "between ranks", /^copy\.wire$/],
  ["local", "within the rank", /\.local$/],
  [
    "stage",
    "take and release memory; pack, unpack, cast, write back",
    /\.(pack|unpack|cast|writeback|refresh|allocate|release)$/
  ],
  [
    "agree",
    "waiting for others, agreement of ranks",
    /^copy\.(handshake|commit)$|^agreeOn|^exchange|^ProcessGroup\.wait$|^(process\.)?wait$|^group\.join$/
  ],
  [
    "plan",
    "start, open, plan, prepare",
    /^plan$|\.(plan|prepare)$|^openModel|^choose|^job\.(start|open)$|^process\.load$/
  ],
  ["file", "load, write", /^job\.(load|write|commit)$/],
  ["verify", "verify", /^job\.(verify|prove)$/],
  ["frame", "what phases are part of", /./]
]

const kindOf = (name: string): string => kinds.find(([, , names]) => names.test(name))![0]

const endOf = ({ start, seconds }: RecordedPhase): number => start + seconds

const bar = (phase: RecordedPhase, whole: number): string => {
  const { name, row, start, seconds, about } = phase
  const title = `${name}: ${formatSeconds(seconds)}, from ${formatSeconds(start)}${about === "" ? "" : `; ${about}`}`
  const place = `--s:${fraction(start, whole)};--d:${fraction(seconds, whole)};--r:${row}`
  return `<span class="bar ${kindOf(name)}" data-name="${escapeHtml(name)}" style="${place}" title="${escapeHtml(title)}">${escapeHtml(name)}</span>`
}

const lane = ({ rank, phases }: RecordedRank, shortest: number, whole: number): string => {
  const rows = phases.reduce((most, { row }) => Math.max(most, row + 1), 1)
  const bars = phases.filter(({ seconds }) => seconds >= shortest).map((phase) => bar(phase, whole))
  return `<div class="laneName">rank ${rank}</div><div class="lane" style="--rows:${rows}">${bars.join("")}</div>`
}

interface View {
  readonly name: string
  readonly start: number
  readonly end: number
}

/** Parts of the run to look at closer, the job first: from the first rank that began it to the last that ended. */
const viewsOf = (ranks: ReadonlyArray<RecordedRank>, whole: number): ReadonlyArray<View> => {
  const views = new Map<string, View>()
  for (const { phases } of ranks) {
    for (const phase of phases) {
      if (!/^job(\.|$)|^CopyService\.run$/.test(phase.name) || phase.seconds === 0) continue
      const known = views.get(phase.name)
      views.set(phase.name, {
        name: phase.name.replace(/^job\./, ""),
        start: Math.min(known?.start ?? Number.POSITIVE_INFINITY, phase.start),
        end: Math.max(known?.end ?? 0, endOf(phase))
      })
    }
  }
  const all: View = { name: "with the start of ranks", start: 0, end: whole }
  const { job = { ...all, name: "whole job" }, ...steps } = Object.fromEntries(views)
  const isStarted = job.start > 0.001 * whole
  return [
    { ...job, name: "whole job" },
    ...(isStarted ? [all] : []),
    ...Object.values(steps).sort((a, b) => a.start - b.start)
  ]
}

const viewButton = ({ name, start, end }: View, whole: number, isPressed: boolean): string =>
  `<button type="button" data-start="${fraction(start, whole)}" data-span="${fraction(end - start, whole)}" aria-pressed="${isPressed}">${escapeHtml(name)}</button>`

export const timeline = ({ ranks, droppedSpans }: RunRecord): string => {
  const all = ranks.flatMap(({ phases }) => phases)
  if (all.length === 0) return `<p class="quiet">The record has no phases.</p>`
  const whole = all.reduce((last, phase) => Math.max(last, endOf(phase)), 0)
  const lengths = all.length <= barLimit ? [] : all.map(({ seconds }) => seconds).sort((a, b) => b - a)
  const shortest = lengths[barLimit] ?? 0
  const views = viewsOf(ranks, whole)
  const [first] = views as [View, ...Array<View>]
  const ticks = Array.from(
    { length: 6 },
    (_, at) =>
      `<span style="--at:${at / 5}">${formatSeconds(first.start + (at / 5) * (first.end - first.start))}</span>`
  ).join("")
  const used = new Set(all.map(({ name }) => kindOf(name)))
  const legend = kinds
    .filter(([kind]) => used.has(kind))
    .map(([kind, about]) => `<li><span class="swatch ${kind}"></span>${about}</li>`)
    .join("")
  const dropped = droppedSpans === 0 ? "" : `<p class="quiet">${droppedSpans} further spans were not kept.</p>`
  return `<div class="views" role="group" aria-label="Part of the timeline">${views.map((view, at) => viewButton(view, whole, at === 0)).join("")}</div>
<ul class="legend">${legend}</ul>
<div class="timeline" role="application" tabindex="0" aria-roledescription="timeline" aria-label="Phases of ${ranks.length} ranks over ${escapeHtml(formatSeconds(whole))}. Arrow keys move from bar to bar, plus and minus change the scale, 0 shows the whole; the table of ranks has the seconds" data-whole="${whole}" style="--t0:${fraction(first.start, whole)};--tn:${fraction(first.end - first.start, whole)}">
<div class="laneName"></div><div class="ticks" aria-hidden="true">${ticks}</div>
${ranks.map((rank) => lane(rank, shortest, whole)).join("\n")}</div><p class="chosen quiet" role="status" aria-live="polite">No bar is chosen.</p>${dropped}`
}
