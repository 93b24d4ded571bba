// SPDX-License-Identifier: Apache-2.0
/** Plain text tables: columns as wide as their longest cell, numbers to the right. */

export type Align = "left" | "right"

export const table = (
  header: ReadonlyArray<string>,
  rows: ReadonlyArray<ReadonlyArray<string>>,
  align: ReadonlyArray<Align> = []
): string => {
  const all = [header, ...rows]
  // Rows may be more than a call can have arguments.
  const widths = header.map((_, column) => all.reduce((most, row) => Math.max(most, (row[column] ?? "").length), 0))
  const line = (row: ReadonlyArray<string>): string =>
    widths
      .map((width, column) => {
        const cell = row[column] ?? ""
        return align[column] === "right" ? cell.padStart(width) : cell.padEnd(width)
      })
      .join("  ")
      .trimEnd()
  return [line(header), widths.map((width) => "─".repeat(width)).join("  "), ...rows.map(line)].join("\n")
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
