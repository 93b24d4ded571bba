// SPDX-License-Identifier: Apache-2.0
/**
 * A record of a run as one HTML page that needs nothing else: no network, no other file. Its policy lets no script run but
 * its own, whatever the record holds.
 */
import { createHash } from "node:crypto"
import * as path from "node:path"
import { formatShape } from "@tensorferry/core/base/Region"
import { jobPhases } from "../job/phases.ts"
import { formatBytes, formatRate, formatSeconds } from "../text/Table.ts"
import { heatMap } from "./heatMap.ts"
import { escapeHtml, formatRanks, jsonForScript } from "./html.ts"
import { memoryChart } from "./memoryChart.ts"
import { pacesOf } from "./pace.ts"
import { pageScript } from "./pageScript.ts"
import { pageStyle } from "./pageStyle.ts"
import type { RecordedRank, RunRecord } from "./RunRecord.ts"
import { timeline } from "./timeline.ts"
import { copySteps, rateOf, waterfalls } from "./waterfall.ts"

/** Text, or what is shown and what it is sorted by. */
type Cell = string | readonly [text: string, value: number]

interface DataTable {
  readonly label: string
  readonly columns: ReadonlyArray<{
    readonly name: string
    readonly kind: "text" | "code" | "number"
    readonly width: string
  }>
  readonly rows: ReadonlyArray<ReadonlyArray<Cell>>
}

const dataTable = (id: string, table: DataTable): string =>
  `<div class="data" data-table="${id}"><p class="quiet">${table.rows.length} rows; the table needs a script, which this browser does not run.</p></div>
<script type="application/json" id="${id}">${jsonForScript(table)}</script>`

const bytes = (value: number): Cell => [formatBytes(value), value]

const tensorTable = ({ tensors }: RunRecord): DataTable => ({
  label: "Parameters",
  columns: [
    { name: "parameter", kind: "code", width: "34%" },
    { name: "type", kind: "text", width: "11%" },
    { name: "shape", kind: "text", width: "13%" },
    { name: "bytes", kind: "number", width: "10%" },
    { name: "from ranks", kind: "number", width: "10%" },
    { name: "to ranks", kind: "number", width: "10%" },
    { name: "digest", kind: "code", width: "12%" }
  ],
  rows: tensors.map(({ name, dtype, shape, bytes: size, sources, destinations, digest }) => [
    name,
    dtype,
    formatShape(shape),
    bytes(size),
    [formatRanks(sources), sources.length],
    [formatRanks(destinations), destinations.length],
    digest ?? "not verified"
  ])
})

const pairTable = (record: RunRecord): DataTable => ({
  label: "Pairs of ranks",
  columns: [
    { name: "from", kind: "number", width: "62px" },
    { name: "to", kind: "number", width: "52px" },
    { name: "bytes", kind: "number", width: "92px" },
    { name: "rate", kind: "number", width: "128px" },
    { name: "path", kind: "text", width: "112px" },
    { name: "why", kind: "text", width: "auto" }
  ],
  rows: pacesOf(record).map((pace) => [
    [String(pace.from), pace.from],
    [String(pace.to), pace.to],
    bytes(pace.bytes),
    [`${rateOf(pace)}${pace.isSlow ? " slow" : ""}`, pace.seconds === 0 ? 0 : pace.bytes / pace.seconds],
    pace.path,
    pace.reason
  ])
})

/** Less than this on every rank has no column. */
const leastSeconds = 5e-4

interface Column {
  readonly name: string
  readonly of: (rank: RecordedRank) => string
}

const secondsColumns = <A extends string>(
  ranks: ReadonlyArray<RecordedRank>,
  names: ReadonlyArray<A>,
  of: (rank: RecordedRank, name: A) => number
): ReadonlyArray<Column> =>
  names
    .filter((name) => ranks.some((rank) => of(rank, name) >= leastSeconds))
    .map((name) => ({ name, of: (rank) => formatSeconds(of(rank, name)) }))

const rankTable = (label: string, ranks: ReadonlyArray<RecordedRank>, columns: ReadonlyArray<Column>): string =>
  `<div class="scroller" tabindex="0" role="region" aria-label="${label}"><table class="plain ranks"><thead><tr>${["rank", ...columns.map(({ name }) => name)].map((name) => `<th scope="col">${escapeHtml(name)}</th>`).join("")}</tr></thead><tbody>
${ranks
  .map(
    (rank) =>
      `<tr><th scope="row">rank ${rank.rank}</th>${columns.map((column) => `<td>${escapeHtml(column.of(rank))}</td>`).join("")}</tr>`
  )
  .join("\n")}</tbody></table></div>`

/** Seconds of every rank, also for those who do not see the charts. */
const rankTables = ({ ranks }: RunRecord): string =>
  `${rankTable("Phases by rank", ranks, [
    // Where it is one host for all, the facts of the run say enough.
    ...(new Set(ranks.map(({ host }) => host)).size > 1
      ? [{ name: "host", of: ({ host }: RecordedRank) => host }]
      : []),
    { name: "source", of: ({ sourceBytes }) => formatBytes(sourceBytes) },
    { name: "destination", of: ({ destinationBytes }) => formatBytes(destinationBytes) },
    ...secondsColumns(ranks, jobPhases, ({ seconds }, name) => seconds[name] ?? 0)
  ])}<h3>The copy</h3>${rankTable(
    "Steps of the copy by rank",
    ranks,
    secondsColumns(ranks, copySteps, ({ copy }, name) => copy.phases[name])
  )}`

const figuresOf = ({ job, ranks, traffic, tensors, backend }: RunRecord): string => {
  const sum = (isOwn: boolean) =>
    traffic.reduce((total, { from, to, bytes: size }) => ((from === to) === isOwn ? total + size : total), 0)
  const [remote, local] = [sum(false), sum(true)]
  const slowest = ranks.reduce((most, { seconds }) => Math.max(most, seconds.copy ?? 0), 0)
  const peak = ranks.reduce((most, { memory }) => Math.max(most, memory.peak), 0)
  const transfer = ranks.reduce((most, { copy }) => Math.max(most, copy.phases.transfer), 0)
  const rate = formatRate(remote, transfer)
  const figures: ReadonlyArray<readonly [name: string, value: string, about: string]> = [
    ["between ranks", formatBytes(remote), `${formatBytes(local)} within ranks`],
    ["copy", formatSeconds(slowest), rate === "" ? "slowest rank" : `slowest rank; ${rate} in transfer`],
    ["whole command", formatSeconds(job.seconds), "with the start of processes"],
    ["ranks", String(ranks.length), job.ranks],
    ["parameters", String(tensors.length), job.conversion === "" ? "types unchanged" : `as ${job.conversion}`],
    ["peak memory", formatBytes(peak), "of one rank"],
    ["backend", backend.name, backend.reason]
  ]
  return `<dl class="figures">${figures
    .map(
      ([name, value, about]) =>
        `<div><dt>${escapeHtml(name)}</dt><dd>${escapeHtml(value)}<small>${escapeHtml(about)}</small></dd></div>`
    )
    .join("")}</dl>`
}

const factList = ({ facts, job }: RunRecord): string => {
  const all = [
    { name: "checkpoint", value: job.checkpoint },
    { name: "written to", value: job.out ?? "nowhere: the result was proved in memory" },
    ...facts
  ]
  return `<dl class="facts">${all.map(({ name, value }) => `<dt>${escapeHtml(name)}</dt><dd>${escapeHtml(value)}</dd>`).join("")}</dl>`
}

export const section = (id: string, heading: string, about: string, body: string): string =>
  `<section aria-labelledby="${id}"><h2 id="${id}">${heading}</h2><p class="quiet">${about}</p>\n${body}</section>`

/** A complete page: its policy lets no script run but its own. */
export const htmlPage = (title: string, header: string, main: string): string => {
  const hash = createHash("sha256").update(pageScript).digest("base64")
  const policy = `default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-${hash}'; base-uri 'none'; form-action 'none'`
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>${escapeHtml(title)}</title>
<style>${pageStyle}</style></head><body>
<header>${header}</header><main>
${main}
</main><footer>Made by tensorferry report. This page is complete in itself.</footer>
<script>${pageScript}</script></body></html>
`
}

/** When a run ended. */
export const timeOf = (created: string): string =>
  `<time datetime="${escapeHtml(created)}">${escapeHtml(created.replace("T", " ").replace(/\.\d+Z$/, " UTC"))}</time>`

export const reportPage = (record: RunRecord): string => {
  const { job, created } = record
  const name = path.basename(job.checkpoint)
  const badge = job.verified
    ? `<span class="badge good">verified: bit-identical</span>`
    : `<span class="badge warn">not verified</span>`
  const header = `<div class="brand">tensorferry reshard ${badge}</div>
<h1>${escapeHtml(job.from)} → ${escapeHtml(job.to)}</h1>
<p class="lead">${escapeHtml(name)}, ${timeOf(created)}</p>
${figuresOf(record)}`
  const main = `${section(
    "traffic",
    "Traffic",
    "Payload bytes from each rank to each rank; what a rank kept for itself is dashed.",
    `<div class="split">${heatMap(record)}${dataTable("pairs", pairTable(record))}</div>`
  )}
${section("waterfall", "Where the time went", "The phases of every rank, one after another on one scale. Waiting for others is a phase of its own.", waterfalls(record))}
${section("phases", "Timeline", "What every rank did, from the moment the first one began. Point at a bar, or move from bar to bar by the arrow keys, for its numbers; + and - change the scale.", timeline(record))}
${section("ranks", "Ranks", "Seconds of each phase and of each step of the copy, by rank.", rankTables(record))}
${section("memory", "Memory", "Resident memory of each rank's process, against what its plan needs.", memoryChart(record))}
${section("parameters", "Parameters", "Every tensor of the result: its bytes on all ranks, where they came from, and the digest that was compared.", dataTable("tensors", tensorTable(record)))}
${section("facts", "Run", "What it ran on.", factList(record))}`
  return htmlPage(`${name}: ${job.from} → ${job.to}`, header, main)
}
