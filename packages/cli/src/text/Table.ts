// SPDX-License-Identifier: Apache-2.0
/**
 * Plain text tables: columns as wide as their longest cell, numbers to the right.
 *
 * Invariant: a table has a bound, and says in a last line how much it leaves out. A cell is one line of plain characters,
 * whatever names are in it.
 */
import { plainLine } from "./terminal.ts"

export type Align = "left" | "right"

const mostRows = 256
const mostColumns = 64
const mostCharacters = 1000

const cellOf = (text: string): string =>
  plainLine(text.length > mostCharacters ? `${text.slice(0, mostCharacters)} …` : text)

const more = (count: number, what: string): ReadonlyArray<string> =>
  count <= 0 ? [] : [`… and ${count} more ${what}${count === 1 ? "" : "s"}; --json lists all`]

export const table = (
  header: ReadonlyArray<string>,
  rows: ReadonlyArray<ReadonlyArray<string>>,
  align: ReadonlyArray<Align> = []
): string => {
  const cells = (row: ReadonlyArray<string>) =>
    header.slice(0, mostColumns).map((_, column) => cellOf(row[column] ?? ""))
  const [top, ...shown] = [header, ...rows.slice(0, mostRows)].map(cells) as [Array<string>, ...Array<Array<string>>]
  const widths = top.map((title, column) => Math.max(title.length, ...shown.map((row) => row[column]!.length)))
  const line = (row: ReadonlyArray<string>): string =>
    row
      .map((cell, column) =>
        align[column] === "right" ? cell.padStart(widths[column]!) : cell.padEnd(widths[column]!)
      )
      .join("  ")
      .trimEnd()
  return [
    line(top),
    widths.map((width) => "─".repeat(width)).join("  "),
    ...shown.map(line),
    ...more(rows.length - mostRows, "row"),
    ...more(header.length - mostColumns, "column")
  ].join("\n")
}

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]

/** `1536` as `1.5 KiB`. */
export const formatBytes = (bytes: number): string => {
  let value = bytes
  let unit = 0
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024
    unit += 1
  }
  return unit === 0 ? `${value} B` : `${value.toFixed(value >= 100 ? 0 : 1)} ${units[unit]}`
}

export const formatSeconds = (seconds: number): string =>
  seconds >= 10
    ? `${seconds.toFixed(1)} s`
    : seconds >= 1
      ? `${seconds.toFixed(2)} s`
      : `${(seconds * 1000).toFixed(1)} ms`

/** Bytes per second of a step that moved something in a measurable time. */
export const formatRate = (bytes: number, seconds: number): string =>
  bytes === 0 || seconds < 1e-4 ? "" : `${(bytes / seconds / 1e9).toFixed(2)} GB/s`
