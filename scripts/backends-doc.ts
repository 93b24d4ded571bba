// SPDX-License-Identifier: Apache-2.0
/**
 * Makes docs/backends.md from the reports in docs/backends: what each backend offers, and its results in the conformance
 * kit. `--check` writes nothing, and fails if the page differs from the reports.
 */
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { ConformanceReport, countCases, type ServiceResults } from "@tensorferry/testing"
import * as Schema from "effect/Schema"

const docs = path.resolve(import.meta.dirname, "../docs")

/** In the order of the page; others follow by name. */
const order = ["torch-copy", "cuda", "cuda-ipc", "nccl", "nvshmem", "xpu"]

const decode = Schema.decodeUnknownSync(Schema.fromJsonString(Schema.toCodecJson(ConformanceReport)))

export const readReports = (folder = path.join(docs, "backends")): ReadonlyArray<ConformanceReport> => {
  const place = (name: string): number => (order.includes(name) ? order.indexOf(name) : order.length)
  return readdirSync(folder)
    .filter((file) => file.endsWith(".json"))
    .map((file) => decode(readFileSync(path.join(folder, file), "utf8")))
    .sort((a, b) => place(a.backend) - place(b.backend) || a.backend.localeCompare(b.backend))
}

const cell = (text: string): string => text.replaceAll("|", "\\|").replaceAll("\n", " ")

const table = (header: ReadonlyArray<string>, rows: ReadonlyArray<ReadonlyArray<string>>): string =>
  [header, header.map(() => "---"), ...rows].map((row) => `| ${row.map(cell).join(" | ")} |`).join("\n")

const services: ReadonlyArray<readonly [ServiceResults["service"], string]> = [
  ["tensorEngine", "TensorEngine"],
  ["copyService", "CopyService"],
  ["copyDriver", "CopyDriver"],
  ["replayTransfer", "ReplayTransferBackend"]
]

/** `41 of 43`, with what is not passed. */
const standing = ({ isOffered, cases }: ServiceResults): string => {
  if (!isOffered) return "–"
  const { passed, failed, skipped } = countCases(cases)
  const rest = [failed > 0 ? `${failed} failed` : "", skipped > 0 ? `${skipped} skipped` : ""].filter(Boolean)
  return `${passed} of ${cases.length}${rest.length === 0 ? "" : ` (${rest.join(", ")})`}`
}

/** Where the devices are not real, the table says so. */
const nameOf = ({ backend, note }: ConformanceReport): string =>
  note.startsWith("Simulated") ? `${backend} (simulated)` : backend

type Capabilities = { readonly [service: string]: { readonly [name: string]: Schema.Json } | boolean | undefined }

const capability = (report: ConformanceReport, service: string, name: string): string => {
  const stated = (report.capabilities as Capabilities)[service]
  if (typeof stated !== "object") return "–"
  const value = stated[name]
  if (typeof value === "boolean") return value ? "yes" : "no"
  if (Array.isArray(value)) return value.join(", ") || "none"
  if (value === Number.MAX_SAFE_INTEGER) return "any"
  return String(value)
}

const capabilities: ReadonlyArray<readonly [service: string, name: string, title: string]> = [
  ["tensorEngine", "cast", "casts"],
  ["tensorEngine", "reduce", "reduces"],
  ["tensorEngine", "quantize", "quantizes"],
  ["tensorEngine", "hostVisible", "host sees memory"],
  ["copyDriver", "gather", "takes strided regions"],
  ["copyDriver", "requiresProcessGroupBarrier", "needs a barrier"],
  ["copyDriver", "requiresTaskId", "needs task ids"],
  ["copyDriver", "maxMessageBytes", "most bytes of a message"]
]

/** Cases that did not pass, by reason, so that a reason that many share stands once. */
const notPassed = (report: ConformanceReport, status: "failed" | "skipped"): ReadonlyArray<string> => {
  const byReason = new Map<string, Array<string>>()
  for (const { cases } of report.services) {
    for (const one of cases.filter((each) => each.status === status)) {
      byReason.set(one.detail, [...(byReason.get(one.detail) ?? []), one.name])
    }
  }
  return [...byReason].map(([reason, names]) => `- ${cell(reason)}: ${names.join("; ")}`)
}

const section = (report: ConformanceReport): string => {
  const { machine, probe, core } = report
  const versions = Object.entries(probe.versions).map(([name, version]) => `${name} ${version}`)
  const failed = notPassed(report, "failed")
  const skipped = notPassed(report, "skipped")
  return [
    `## ${nameOf(report)}`,
    "",
    report.note,
    "",
    `- Package: ${report.package.name} ${report.package.version}, core ${core.version}, contract ${core.apiVersion}`,
    `- Device families: ${report.deviceFamilies.join(", ")}`,
    `- Found: ${cell(probe.detail)}`,
    `- Versions: ${versions.join(", ")}`,
    `- Machine: ${machine.platform} ${machine.architecture}, ${machine.processor}, Node ${machine.node}; up to ${report.ranks} processes`,
    `- Options: \`${JSON.stringify(report.options)}\``,
    ...(report.isFiltered ? ["- **Only some of the cases ran.**"] : []),
    ...(failed.length === 0 ? [] : ["", "Failed:", "", ...failed]),
    ...(skipped.length === 0 ? [] : ["", "Skipped, and why:", "", ...skipped])
  ].join("\n")
}

export const backendsPage = (reports: ReadonlyArray<ConformanceReport>): string =>
  `${[
    "# Backends",
    "",
    "<!-- Made by scripts/backends-doc.ts from docs/backends/*.json. Do not edit. -->",
    "",
    "This page shows what each backend offers, and its results in the conformance kit. Each line comes from a report of",
    "`tensorferry backends conformance NAME --report FILE`; `node scripts/backends-reports.ts` makes all reports again.",
    "A case is skipped where the backend declares that it cannot do this, or where the descriptor offers no hook to test it.",
    "The tests of the packages cover more.",
    "",
    table(
      ["backend", ...services.map(([, title]) => title)],
      reports.map((report) => [
        nameOf(report),
        ...services.map(([service]) => {
          const found = report.services.find((one) => one.service === service)
          return found === undefined ? "–" : standing(found)
        })
      ])
    ),
    "",
    "## Capabilities",
    "",
    table(
      ["", ...reports.map(({ backend }) => backend)],
      capabilities.map(([service, name, title]) => [
        title,
        ...reports.map((report) => capability(report, service, name))
      ])
    ),
    "",
    reports.map(section).join("\n\n")
  ].join("\n")}\n`

const page = path.join(docs, "backends.md")

const main = (): void => {
  const made = backendsPage(readReports())
  if (!process.argv.includes("--check")) {
    writeFileSync(page, made)
  } else if (readFileSync(page, "utf8") === made) {
    console.log("docs/backends.md: as the reports say")
  } else {
    console.error("docs/backends.md is not what the reports say; run: node scripts/backends-doc.ts")
    process.exitCode = 1
  }
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) main()
