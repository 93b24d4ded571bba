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
  ["stage", "pack, unpack, cast, write back", /\.(pack|unpack|cast|writeback|refresh)$/],
  ["agree", "agreement of ranks", /^copy\.(handshake|commit)$|^agreeOn|^exchange/],
  ["plan", "plan and prepare", /^plan$|\.(plan|prepare)$|^openModel|^choose/],
  ["file", "load, write", /^job\.(load|write|commit)$/],
  ["verify", "verify", /^job\.verify$/],
  ["frame", "what phases are part of", /./]
]

const kindOf = (name: string): string => kinds.find(([, , names]) => names.test(name))![0]

const endOf = ({ start, seconds }: RecordedPhase): number => start + seconds

const bar = (phase: RecordedPhase, whole: number): string => {
  const { name, row, start, seconds, about } = phase
  const title = `${name}: ${formatSeconds(seconds)}, from ${formatSeconds(start)}${about === "" ? "" : `; ${about}`}`
  const place = `--s:${fraction(start, whole)};--d:${fraction(seconds, whole)};--r:${row}`
  return `<span class="bar ${kindOf(name)}" style="${place}" title="${escapeHtml(title)}">${escapeHtml(name)}</span>`
}

const lane = ({ rank, phases }: RecordedRank, shortest: number, whole: number): string => {
  const rows = phases.reduce((most, { row }) => Math.max(most, row + 1), 1)
  const bars = phases.filter(({ seconds }) => seconds >= shortest).map((phase) => bar(phase, whole))
  return `<div class="laneName">rank ${rank}</div><div class="lane" style="--rows:${rows}">${bars.join("")}</div>`
}

/** Parts of the job to look at closer: from the first rank that began it to the last that ended. */
const viewsOf = (ranks: ReadonlyArray<RecordedRank>, whole: number): string => {
  const views = new Map<string, readonly [start: number, end: number]>()
  for (const { phases } of ranks) {
    for (const phase of phases) {
      if (!/^job\.|^CopyService\.run$/.test(phase.name) || phase.seconds === 0) continue
      const [start, end] = views.get(phase.name) ?? [Number.POSITIVE_INFINITY, 0]
      views.set(phase.name, [Math.min(start, phase.start), Math.max(end, endOf(phase))])
    }
  }
  const all: ReadonlyArray<readonly [string, readonly [number, number]]> = [
    ["whole job", [0, whole]],
    ...[...views].sort(([, a], [, b]) => a[0] - b[0])
  ]
  return all
    .map(([name, [start, end]], at) => {
      const span = `data-start="${fraction(start, whole)}" data-span="${fraction(end - start, whole)}"`
      return `<button type="button" ${span} aria-pressed="${at === 0}">${escapeHtml(name.replace(/^job\./, ""))}</button>`
    })
    .join("")
}

export const timeline = ({ ranks, droppedSpans }: RunRecord): string => {
  const all = ranks.flatMap(({ phases }) => phases)
  if (all.length === 0) return `<p class="quiet">The record has no phases.</p>`
  const whole = all.reduce((last, phase) => Math.max(last, endOf(phase)), 0)
  const lengths = all.length <= barLimit ? [] : all.map(({ seconds }) => seconds).sort((a, b) => b - a)
  const shortest = lengths[barLimit] ?? 0
  const ticks = Array.from({ length: 6 }, (_, at) => `<span>${formatSeconds((at / 5) * whole)}</span>`).join("")
  const used = new Set(all.map(({ name }) => kindOf(name)))
  const legend = kinds
    .filter(([kind]) => used.has(kind))
    .map(([kind, about]) => `<li><span class="swatch ${kind}"></span>${about}</li>`)
    .join("")
  const dropped = droppedSpans === 0 ? "" : `<p class="quiet">${droppedSpans} further spans were not kept.</p>`
  return `<div class="views" role="group" aria-label="Part of the timeline">${viewsOf(ranks, whole)}</div>
<ul class="legend">${legend}</ul>
<div class="timeline" role="img" tabindex="0" aria-label="Phases of ${ranks.length} ranks over ${escapeHtml(formatSeconds(whole))}; the table of ranks has the seconds" data-whole="${whole}" style="--t0:0;--tn:1">
<div class="laneName"></div><div class="ticks" aria-hidden="true">${ticks}</div>
${ranks.map((rank) => lane(rank, shortest, whole)).join("\n")}</div>${dropped}`
}
