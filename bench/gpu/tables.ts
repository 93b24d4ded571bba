// SPDX-License-Identifier: Apache-2.0
/** The tables that end a run. */
import type { Figure } from "./replay.ts"

/** A case of resharding. */
export interface Row {
  readonly case: string
  readonly path: string
  readonly medianMs: number
  readonly targetMs: number
  readonly referenceMs: number
  readonly limitMs: number
  readonly bytesRemote: number
  readonly ops: number
}

const printFigures = (figures: ReadonlyArray<Figure>): void => {
  if (figures.length === 0) return
  console.log("\n| case | value | target | | |\n| --- | --- | --- | --- | --- |")
  for (const { case: name, value, unit, target, lowerIsBetter, detail } of figures) {
    const goal = target === undefined ? "" : `${lowerIsBetter ? "<=" : ">="} ${target} ${unit}`
    const isMet = target === undefined || (lowerIsBetter ? value <= target : value >= target)
    console.log(`| ${name} | ${value.toPrecision(4)} ${unit} | ${goal} | ${isMet ? "met" : "missed"} | ${detail} |`)
  }
}

/** What was told, then figures, then cases. */
export const printTables = (
  summary: ReadonlyArray<string>,
  figures: ReadonlyArray<Figure>,
  rows: ReadonlyArray<Row>
): void => {
  console.log("\n----------------------------------------")
  for (const line of summary) console.log(line)
  printFigures(figures)
  if (rows.length === 0) return
  console.log(
    "\n| case | path | median ms | target | reference | limit | GB/s | |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
  )
  for (const row of rows) {
    const speed = row.bytesRemote / row.medianMs / 1e6
    const verdict = row.medianMs <= row.targetMs ? "met" : "missed"
    console.log(
      `| ${row.case} | ${row.path} | ${row.medianMs.toFixed(2)} | ${row.targetMs} | ${row.referenceMs} | ${row.limitMs} | ${speed.toFixed(0)} | ${verdict} |`
    )
  }
}
