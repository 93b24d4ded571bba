// SPDX-License-Identifier: Apache-2.0
/**
 * A record of a run as one HTML page that needs nothing else: no network, no other file. Its policy lets no script run but
 * its own, whatever the record holds.
 */
import { createHash } from "node:crypto"
import * as path from "node:path"
import { formatShape } from "@tensorferry/core/base/Region"
import { formatBytes, formatRate, formatSeconds } from "../text/Table.ts"
import { heatMap } from "./heatMap.ts"
import { escapeHtml, formatRanks, jsonForScript } from "./html.ts"
import { memoryChart } from "./memoryChart.ts"
import { pageScript } from "./pageScript.ts"
import { pageStyle } from "./pageStyle.ts"
import type { RecordedRank, RunRecord } from "./RunRecord.ts"
import { timeline } from "./timeline.ts"

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

const pairTable = ({ traffic }: RunRecord): DataTable => ({
  label: "Pairs of ranks",
  columns: [
    { name: "from", kind: "number", width: "12%" },
    { name: "to", kind: "number", width: "10%" },
    { name: "bytes", kind: "number", width: "18%" },
    { name: "path", kind: "text", width: "22%" },
    { name: "why", kind: "text", width: "38%" }
  ],
  rows: traffic.map(({ from, to, bytes: size, path: by, reason }) => [
    [String(from), from],
    [String(to), to],
    bytes(size),
    by,
    reason
  ])
})

const steps = ["plan", "load", "wait", "copy", "verify", "write"] as const
const copySteps = ["handshake", "prepare", "pack", "local", "transfer", "unpack", "writeback", "outcome"] as const

/** Seconds of every rank, also for those who do not see the timeline. */
const rankTable = ({ ranks }: RunRecord): string => {
  const taken = <A extends string>(names: ReadonlyArray<A>, of: (rank: RecordedRank, name: A) => number) =>
    names
      .map((name) => ({ name, of: (rank: RecordedRank) => of(rank, name) }))
      .filter((column) => ranks.some((rank) => column.of(rank) > 0))
  const whole = taken(steps, ({ seconds }, name) => seconds[name] ?? 0)
  const parts = taken(copySteps, ({ copy }, name) => copy.phases[name])
  const ofParts = (at: number) => (at === 0 ? ' class="part"' : "")
  const heads = [
    ...["rank", "host", "source", "destination", ...whole.map(({ name }) => name)].map(
      (name) => `<th scope="col">${name}</th>`
    ),
    ...parts.map(({ name }, at) => `<th scope="col"${ofParts(at)}>${name}</th>`)
  ]
  const rows = ranks.map((rank) => {
    const cells = [
      escapeHtml(rank.host),
      formatBytes(rank.sourceBytes),
      formatBytes(rank.destinationBytes),
      ...whole.map((column) => formatSeconds(column.of(rank)))
    ]
    const copied = parts.map((column, at) => `<td${ofParts(at)}>${formatSeconds(column.of(rank))}</td>`)
    return `<tr><th scope="row">rank ${rank.rank}</th>${cells.map((cell) => `<td>${cell}</td>`).join("")}${copied.join("")}</tr>`
  })
  return `<div class="scroller" tabindex="0" role="region" aria-label="Seconds by rank"><table class="plain ranks"><thead><tr>${heads.join("")}</tr></thead><tbody>
${rows.join("\n")}</tbody></table></div>`
}

const figuresOf = ({ job, ranks, traffic, tensors, backend }: RunRecord): string => {
  const sum = (isOwn: boolean) =>
    traffic.reduce((total, { from, to, bytes: size }) => ((from === to) === isOwn ? total + size : total), 0)
  const [remote, local] = [sum(false), sum(true)]
  const slowest = ranks.reduce((most, { seconds }) => Math.max(most, seconds.copy ?? 0), 0)
  const peak = ranks.reduce((most, { memory }) => Math.max(most, memory.peak), 0)
  const rate = slowest > 0 && (remote + local) / slowest >= 1e7 ? formatRate(remote + local, slowest) : ""
  const figures: ReadonlyArray<readonly [name: string, value: string, about: string]> = [
    ["between ranks", formatBytes(remote), `${formatBytes(local)} within ranks`],
    ["copy", formatSeconds(slowest), rate === "" ? "slowest rank" : `slowest rank, ${rate}`],
    ["whole command", formatSeconds(job.seconds), "with the start of processes"],
    ["ranks", String(ranks.length), job.ranks],
    ["parameters", String(tensors.length), job.conversion === "" ? "as they were" : `as ${job.conversion}`],
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

const section = (id: string, heading: string, about: string, body: string): string =>
  `<section aria-labelledby="${id}"><h2 id="${id}">${heading}</h2><p class="quiet">${about}</p>\n${body}</section>`

export const reportPage = (record: RunRecord): string => {
  const { job, created } = record
  const name = path.basename(job.checkpoint)
  const hash = createHash("sha256").update(pageScript).digest("base64")
  const policy = `default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-${hash}'; base-uri 'none'; form-action 'none'`
  const badge = job.verified
    ? `<span class="badge good">verified: bit-identical</span>`
    : `<span class="badge warn">not verified</span>`
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>${escapeHtml(`${name}: ${job.from} → ${job.to}`)}</title>
<style>${pageStyle}</style></head><body>
<header><div class="brand">tensorferry reshard ${badge}</div>
<h1>${escapeHtml(job.from)} → ${escapeHtml(job.to)}</h1>
<p class="lead">${escapeHtml(name)}, <time datetime="${escapeHtml(created)}">${escapeHtml(created.replace("T", " ").replace(/\.\d+Z$/, " UTC"))}</time></p>
${figuresOf(record)}</header><main>
${section(
  "traffic",
  "Traffic",
  "Payload bytes from each rank to each rank; what a rank kept for itself is dashed.",
  `<div class="split"><div>${heatMap(record)}</div>${dataTable("pairs", pairTable(record))}</div>`
)}
${section("phases", "Timeline", "What every rank did, from the moment the first one began its job. Point at a bar for its numbers.", timeline(record))}
${section("ranks", "Ranks", "Seconds of each step, by rank; behind the line, the parts of the copy.", rankTable(record))}
${section("memory", "Memory", "Resident memory of each rank's process, against what its plan needs.", memoryChart(record))}
${section("parameters", "Parameters", "Every tensor of the result: its bytes on all ranks, where they came from, and the digest that was compared.", dataTable("tensors", tensorTable(record)))}
${section("facts", "Run", "What it ran on.", factList(record))}
</main><footer>Made by tensorferry report. This page is complete in itself.</footer>
<script>${pageScript}</script></body></html>
`
}
