// SPDX-License-Identifier: Apache-2.0
/** Prints what was measured, for people. */
import type { Pair } from "./duplicates.ts"
import { isOver, type Measure, type Place } from "./measure.ts"
import type { AreaLines } from "./size.ts"

const numbered = (figure: number | undefined): string =>
  figure === undefined ? "" : String(figure).replace(/\B(?=(\d{3})+$)/g, ",")

/** Rows in columns: the first to the left, the others to the right. */
const columns = (rows: ReadonlyArray<ReadonlyArray<string>>): string => {
  const widths = rows[0]!.map((_, at) => Math.max(...rows.map((row) => row[at]!.length)))
  return rows
    .map((row) => row.map((cell, at) => (at === 0 ? cell.padEnd(widths[at]!) : cell.padStart(widths[at]!))).join("  "))
    .map((row) => row.trimEnd())
    .join("\n")
}

const verdict = (measure: Measure): string => (measure.limit === undefined ? "" : isOver(measure) ? "over" : "ok")

export const measureTable = (measures: ReadonlyArray<Measure>, against?: ReadonlyArray<Measure>): string => {
  const theirs = (key: string): string => numbered(against?.find((other) => other.key === key)?.figure)
  const head = ["measure", "figure", ...(against === undefined ? [] : ["against"]), "limit", ""]
  const rows = measures.map((each) => [
    each.title,
    numbered(each.figure),
    ...(against === undefined ? [] : [theirs(each.key)]),
    numbered(each.limit),
    verdict(each)
  ])
  return columns([head, ...rows])
}

export const areaTable = (areas: ReadonlyArray<AreaLines>, against?: ReadonlyArray<AreaLines>): string => {
  const kinds = ["ts", "native", "test", "other"] as const
  const all = new Set([...areas, ...(against ?? [])].map((each) => each.area))
  const cell = (area: string, kind: (typeof kinds)[number]): string => {
    const of = (side: ReadonlyArray<AreaLines>): string =>
      numbered(side.find((each) => each.area === area)?.[kind] ?? 0)
    return against === undefined ? of(areas) : `${of(areas)} (${of(against)})`
  }
  return columns([
    ["lines", ...kinds],
    ...[...all].sort().map((area) => [area, ...kinds.map((kind) => cell(area, kind))])
  ])
}

const listed = (title: string, places: ReadonlyArray<Place>): ReadonlyArray<string> => {
  if (places.length === 0) return []
  const rows = places.map(
    ({ at, name, figure }) => `  ${at}  ${name}${figure === undefined ? "" : `  ${numbered(figure)}`}`
  )
  return ["", `${title}:`, ...rows]
}

/** Offenders of every measure, and the places that count against no limit. */
export const placeLists = (measures: ReadonlyArray<Measure>): string =>
  measures
    .flatMap((each) => [
      ...listed(each.title.trim(), isOver(each) ? (each.offenders ?? []) : []),
      ...listed(`${each.title.trim()} (no fault)`, each.isUnlisted ? [] : (each.others ?? []))
    ])
    .join("\n")

export const pairTable = (pairs: ReadonlyArray<Pair>): string =>
  [
    "pairs of files by the lines they share, with the first place of each:",
    ...pairs.map((pair) => `  ${pair.left} ~ ${pair.right}  ${pair.lines} lines, ${pair.same} of them the same`)
  ].join("\n")
