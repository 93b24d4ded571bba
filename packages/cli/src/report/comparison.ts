// SPDX-License-Identifier: Apache-2.0
/** Two runs on one page: what each phase took, what moved, how much memory, and what else differs. */
import * as path from "node:path"
import { jobPhases, phaseNames } from "../job/phases.ts"
import { formatBytes, formatRate, formatSeconds } from "../text/Table.ts"
import { escapeHtml, fraction } from "./html.ts"
import { htmlPage, section, timeOf } from "./page.ts"
import type { RunRecord } from "./RunRecord.ts"
import { copySteps, longestJob, phaseWaterfall } from "./waterfall.ts"

/** A row of the comparison; what is measured is the larger the slower, heavier or fatter. */
interface Measure {
  readonly name: string
  readonly of: (record: RunRecord) => number
  readonly format: (value: number) => string
  /** Part of the row above. */
  readonly isPart?: boolean
  /** Drawn on a scale of its own. */
  readonly isApart?: boolean
}

const most = (record: RunRecord, of: (rank: RunRecord["ranks"][number]) => number): number =>
  record.ranks.reduce((largest, rank) => Math.max(largest, of(rank)), 0)

const bytesBetween = ({ traffic }: RunRecord): number =>
  traffic.reduce((sum, { bytes, from, to }) => (from === to ? sum : sum + bytes), 0)

const timeMeasures: ReadonlyArray<Measure> = [
  { name: "whole command", of: ({ job }) => job.seconds, format: formatSeconds, isApart: true },
  ...jobPhases.flatMap(
    (phase): ReadonlyArray<Measure> => [
      {
        name: phaseNames[phase],
        of: (record) => most(record, ({ seconds }) => seconds[phase] ?? 0),
        format: formatSeconds
      },
      ...(phase === "copy"
        ? copySteps.map((step) => ({
            name: step,
            of: (record: RunRecord) => most(record, ({ copy }) => copy.phases[step]),
            format: formatSeconds,
            isPart: true
          }))
        : [])
    ]
  )
]

const otherMeasures: ReadonlyArray<Measure> = [
  { name: "bytes between ranks", of: bytesBetween, format: formatBytes, isApart: true },
  {
    name: "peak memory of a rank",
    of: (record) => most(record, ({ memory }) => memory.peak),
    format: formatBytes,
    isApart: true
  },
  {
    name: "peak above the program, without other ranks' memory",
    of: (record) => most(record, ({ memory: { before, mapped = 0, peak } }) => Math.max(0, peak - before - mapped)),
    format: formatBytes,
    isApart: true
  },
  {
    name: "estimate of the plan",
    of: (record) => most(record, ({ memory }) => memory.estimate),
    format: formatBytes,
    isApart: true
  }
]

/** Smaller changes are noise, and not worth a colour. */
const noise = 0.05

const changeOf = (before: number, after: number): string => {
  if (before === after) return "same"
  if (before === 0) return "only in B"
  if (after === 0) return "only in A"
  const change = after / before - 1
  if (after >= 10 * before) return `${(after / before).toFixed(0)} times as much`
  return `${change > 0 ? "+" : "−"}${(Math.abs(change) * 100).toFixed(Math.abs(change) < 0.1 ? 1 : 0)}%`
}

const toneOf = (before: number, after: number): string =>
  Math.abs(after - before) <= noise * before ? "" : after > before ? "warn" : "good"

const bar = (value: number, whole: number, run: "first" | "second"): string =>
  `<i class="${run}" style="--d:${fraction(value, whole)}"></i>`

const comparisonTable = (
  label: string,
  measures: ReadonlyArray<Measure>,
  [first, second]: readonly [RunRecord, RunRecord],
  least: number
): string => {
  const rows = measures
    .map((measure) => ({ measure, a: measure.of(first), b: measure.of(second) }))
    .filter(({ a, b }) => Math.max(a, b) >= least)
  const shared = Math.max(1e-9, ...rows.filter(({ measure }) => measure.isApart !== true).flatMap(({ a, b }) => [a, b]))
  return `<div class="scroller" tabindex="0" role="region" aria-label="${label}"><table class="plain compared"><thead><tr><th scope="col">slowest or largest rank</th><th scope="col"><span class="hidden">chart</span></th><th scope="col">A</th><th scope="col">B</th><th scope="col">change</th></tr></thead><tbody>
${rows
  .map(({ measure: { format, isApart, isPart, name }, a, b }) => {
    const all = isApart === true ? Math.max(a, b) : shared
    return `<tr${isPart === true ? ' class="partOf"' : ""}><th scope="row">${escapeHtml(name)}</th><td class="pair" aria-hidden="true">${bar(a, all, "first")}${bar(b, all, "second")}</td><td>${format(a)}</td><td>${format(b)}</td><td class="${toneOf(a, b)}">${changeOf(a, b)}</td></tr>`
  })
  .join("\n")}</tbody></table></div>`
}

const factsOf = ({ backend, facts, job, ranks, tensors }: RunRecord): ReadonlyMap<string, string> =>
  new Map([
    ["checkpoint", job.checkpoint],
    ["from", job.from],
    ["to", job.to],
    ["ranks", `${ranks.length} (${job.ranks})`],
    ["parameters", String(tensors.length)],
    ["types", job.conversion === "" ? "unchanged" : job.conversion],
    ["verified", job.verified ? "bit-identical" : "no"],
    ["backend", `${backend.name} (${backend.reason})`],
    ...facts.map(({ name, value }) => [name, value] as const)
  ])

const differences = (first: RunRecord, second: RunRecord): string => {
  const [a, b] = [factsOf(first), factsOf(second)]
  const names = [...new Set([...a.keys(), ...b.keys()])].filter((name) => a.get(name) !== b.get(name))
  if (names.length === 0) return `<p class="quiet">Both runs did the same on the same machine and versions.</p>`
  const cell = (value: string | undefined) => `<td>${escapeHtml(value ?? "not stated")}</td>`
  return `<div class="scroller" tabindex="0" role="region" aria-label="What differs"><table class="differing"><thead><tr><th scope="col">what</th><th scope="col">A</th><th scope="col">B</th></tr></thead><tbody>
${names.map((name) => `<tr><th scope="row">${escapeHtml(name)}</th>${cell(a.get(name))}${cell(b.get(name))}</tr>`).join("\n")}</tbody></table></div>`
}

const runOf = (letter: string, { created, job, ranks }: RunRecord, file: string): string =>
  `<li><b>${letter}</b> ${escapeHtml(path.basename(file))}: ${escapeHtml(job.from)} → ${escapeHtml(job.to)}, ${ranks.length} ranks, ${timeOf(created)}</li>`

const transferRate = (record: RunRecord): string =>
  formatRate(
    bytesBetween(record),
    most(record, ({ copy }) => copy.phases.transfer)
  )

/** The page that compares two runs; files are those of the records, for their names. */
export const comparisonPage = (files: readonly [string, string], both: readonly [RunRecord, RunRecord]): string => {
  const [first, second] = both
  const whole = Math.max(longestJob(first), longestJob(second))
  const rates = both.map(transferRate).map((rate, at) => (rate === "" ? [] : [`${"AB"[at]} ${rate}`]))
  const header = `<div class="brand">tensorferry reshard, two runs</div>
<h1>${escapeHtml(path.basename(files[0]))} and ${escapeHtml(path.basename(files[1]))}</h1>
<ul class="runs">${runOf("A", first, files[0])}${runOf("B", second, files[1])}</ul>`
  const rate = rates.flat().length === 0 ? "" : ` In transfer: ${rates.flat().join(", ")}.`
  const main = [
    section(
      "times",
      "Time",
      `Seconds of the slowest rank. A change of up to ${noise * 100}% has no colour.${rate}`,
      comparisonTable("Time", timeMeasures, both, 5e-4)
    ),
    section(
      "waterfall",
      "Where the time went",
      "The phases of every rank on one scale for both runs.",
      `<h3>A</h3>${phaseWaterfall(first, whole)}<h3>B</h3>${phaseWaterfall(second, whole)}`
    ),
    section(
      "amounts",
      "Bytes and memory",
      "Of the rank with most.",
      comparisonTable("Bytes and memory", otherMeasures, both, 1)
    ),
    section("differences", "What differs", "Between the runs' jobs, machines and versions.", differences(first, second))
  ].join("\n")
  return htmlPage(`${path.basename(files[0])} and ${path.basename(files[1])}`, header, main)
}
