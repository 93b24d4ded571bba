// SPDX-License-Identifier: Apache-2.0
/**
 * Plain text tables: columns as wide as their longest cell, numbers to the right. Where a terminal is narrower, cells of
 * words go on in further lines of their column; where that is not enough, columns follow below, each part with the first
 * column.
 *
 * Invariant: a table has a bound, and says in a last line how much it leaves out. A cell is of plain characters, whatever
 * names are in it.
 */
import { plainLine, terminalWidth } from "./terminal.ts"

export type Align = "left" | "right"

const mostRows = 256
const mostColumns = 64
const mostCharacters = 1000
/** Columns of words are made no narrower than this, or than their longest word of at most that many letters. */
const leastWidth = 12
const longWord = 24
const gap = 2

const cellOf = (text: string): string =>
  plainLine(text.length > mostCharacters ? `${text.slice(0, mostCharacters)} …` : text)

const more = (count: number, what: string): ReadonlyArray<string> =>
  count <= 0 ? [] : [`… and ${counted(count, `more ${what}`)}; --json lists all`]

const sumOf = (widths: ReadonlyArray<number>): number =>
  widths.reduce((sum, width) => sum + width, 0) + gap * Math.max(0, widths.length - 1)

/** Lines of a cell: broken at spaces, and where a word is longer. */
const linesOf = (cell: string, width: number): ReadonlyArray<string> => {
  if (cell.length <= width) return [cell]
  const lines: Array<string> = []
  let current = ""
  for (const word of cell.split(" ")) {
    const joined = current === "" ? word : `${current} ${word}`
    if (joined.length <= width) {
      current = joined
      continue
    }
    if (current !== "") lines.push(current)
    current = word
    while (current.length > width) {
      lines.push(current.slice(0, width))
      current = current.slice(width)
    }
  }
  return [...lines, current]
}

/** Columns made narrower, the widest first, until all fit or none can give more. */
const narrowed = (
  natural: ReadonlyArray<number>,
  floors: ReadonlyArray<number>,
  limit: number
): ReadonlyArray<number> => {
  const widths = [...natural]
  for (let excess = sumOf(widths) - limit; excess > 0; excess = sumOf(widths) - limit) {
    const [widest, next] = [...widths.keys()]
      .filter((column) => widths[column]! > floors[column]!)
      .sort((a, b) => widths[b]! - widths[a]!)
    if (widest === undefined) break
    const target = Math.max(floors[widest]!, next === undefined ? 0 : widths[next]! - 1)
    widths[widest] = Math.max(target, widths[widest]! - excess)
  }
  return widths
}

/** Columns that stand side by side; each group but the first begins with the first column again. */
const groupsOf = (floors: ReadonlyArray<number>, limit: number): ReadonlyArray<ReadonlyArray<number>> => {
  const groups: Array<Array<number>> = [[]]
  for (const column of floors.keys()) {
    const group = groups.at(-1)!
    if (group.length > 1 && sumOf([...group, column].map((one) => floors[one]!)) > limit) groups.push([0, column])
    else group.push(column)
  }
  return groups
}

const longestWord = (cell: string): number => Math.max(...cell.split(" ").map((word) => word.length))

export const table = (
  header: ReadonlyArray<string>,
  rows: ReadonlyArray<ReadonlyArray<string>>,
  align: ReadonlyArray<Align> = [],
  limit: number = terminalWidth() ?? Number.POSITIVE_INFINITY
): string => {
  const cells = (row: ReadonlyArray<string>) =>
    header.slice(0, mostColumns).map((_, column) => cellOf(row[column] ?? ""))
  const [top, ...shown] = [header, ...rows.slice(0, mostRows)].map(cells) as [Array<string>, ...Array<Array<string>>]
  const all = [top, ...shown]
  const natural = top.map((_, column) => Math.max(...all.map((row) => row[column]!.length)))
  const floors = natural.map((width, column) => {
    if (align[column] === "right") return width
    const word = Math.max(...all.map((row) => longestWord(row[column]!)))
    return Math.min(width, Math.max(leastWidth, Math.min(word, longWord)))
  })
  const part = (columns: ReadonlyArray<number>): string => {
    const widths = narrowed(
      columns.map((column) => natural[column]!),
      columns.map((column) => floors[column]!),
      limit
    )
    const rowText = (row: ReadonlyArray<string>): ReadonlyArray<string> => {
      const wrapped = columns.map((column, at) => linesOf(row[column]!, widths[at]!))
      return Array.from({ length: Math.max(...wrapped.map((lines) => lines.length)) }, (_, line) =>
        columns
          .map((column, at) => {
            const text = wrapped[at]![line] ?? ""
            return align[column] === "right" ? text.padStart(widths[at]!) : text.padEnd(widths[at]!)
          })
          .join(" ".repeat(gap))
          .trimEnd()
      )
    }
    const rule = widths.map((width) => "─".repeat(width)).join(" ".repeat(gap))
    return [...rowText(top), rule, ...shown.flatMap(rowText)].join("\n")
  }
  return [
    groupsOf(floors, limit).map(part).join("\n\n"),
    ...more(rows.length - mostRows, "row"),
    ...more(header.length - mostColumns, "column")
  ].join("\n")
}

/** `1 rank`, `2 ranks`. */
export const counted = (count: number, one: string, many = `${one}s`): string => `${count} ${count === 1 ? one : many}`

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
      : seconds >= 1e-4 || seconds === 0
        ? `${(seconds * 1000).toFixed(1)} ms`
        : `${(seconds * 1e6).toFixed(1)} µs`

/** Bytes per second of a step that moved something in a measurable time. */
export const formatRate = (bytes: number, seconds: number): string => {
  if (bytes === 0 || seconds < 1e-4) return ""
  const rate = bytes / seconds
  return rate < 1e8 ? `${(rate / 1e6).toFixed(1)} MB/s` : `${(rate / 1e9).toFixed(2)} GB/s`
}
