// SPDX-License-Identifier: Apache-2.0
/**
 * Bytes from rank to rank, as a picture whose shades are steps of one scale. Ranks that send have a row, and those that
 * receive a column.
 */
import { formatBytes } from "../text/Table.ts"
import { escapeHtml } from "./html.ts"
import type { RecordedTraffic, RunRecord } from "./RunRecord.ts"

const steps = 8
/** More cells than this are drawn as one shape per shade, and named only by the table of pairs. */
const namedCells = 4_096

/** Shades follow the square root, so that small pairs are seen beside large ones. */
const shadeOf = (bytes: number, most: number): number =>
  Math.max(1, Math.min(steps, Math.ceil(Math.sqrt(bytes / most) * steps)))

/** Where a rank's row or column is, by rank. */
type Places = ReadonlyMap<number, number>

const placesOf = (ranks: ReadonlyArray<number>): Places =>
  new Map([...new Set(ranks)].sort((a, b) => a - b).map((rank, at) => [rank, at]))

interface Grid {
  readonly rows: Places
  readonly columns: Places
  /** Of a cell. */
  readonly size: number
}

const cellsOf = (
  traffic: ReadonlyArray<RecordedTraffic>,
  { rows, columns, size }: Grid,
  most: number,
  withText: boolean
): string => {
  if (traffic.length > namedCells) {
    const shapes = new Map<number, string>()
    for (const { from, to, bytes } of traffic) {
      const shade = shadeOf(bytes, most)
      shapes.set(
        shade,
        `${shapes.get(shade) ?? ""}M${columns.get(to)! * size} ${rows.get(from)! * size}h${size}v${size}h-${size}z`
      )
    }
    return [...shapes].map(([shade, path]) => `<path class="shade${shade}" d="${path}"/>`).join("")
  }
  return traffic
    .map(({ from, to, bytes, path, reason }) => {
      const shade = shadeOf(bytes, most)
      const [left, top, inner] = [columns.get(to)! * size, rows.get(from)! * size, size - 2]
      const label = `rank ${from} → rank ${to}: ${formatBytes(bytes)} by ${path} (${reason})`
      const text = withText
        ? `<text class="${shade > steps / 2 ? "onShade" : "cellText"}" x="${left + size / 2}" y="${top + size / 2 + 4}">${escapeHtml(formatBytes(bytes))}</text>`
        : ""
      return `<g><title>${escapeHtml(label)}</title><rect class="shade${shade}${from === to ? " ownRank" : ""}" x="${left + 1}" y="${top + 1}" width="${inner}" height="${inner}" rx="${size > 24 ? 4 : 0}"/>${text}</g>`
    })
    .join("")
}

/** Ranks along an edge, as many as there is room for. */
const labelsOf = (places: Places, size: number, label: (rank: number, middle: number) => string): string => {
  const every = Math.max(1, Math.ceil(22 / size))
  return [...places].map(([rank, at]) => (at % every === 0 ? label(rank, at * size + size / 2) : "")).join("")
}

const axesOf = ({ rows, columns, size }: Grid): string =>
  labelsOf(columns, size, (rank, middle) => `<text class="axis" x="${middle}" y="-8">${rank}</text>`) +
  labelsOf(rows, size, (rank, middle) => `<text class="axis end" x="-8" y="${middle + 4}">${rank}</text>`)

/** Steps of the scale with the bytes that each reaches to. */
const scaleOf = (most: number): string =>
  `<ol class="scale" aria-label="Shades">${Array.from({ length: steps }, (_, at) => {
    const upTo = formatBytes(Math.round(((at + 1) / steps) ** 2 * most))
    return `<li><span class="swatch shade${at + 1}"></span>${at % 2 === 1 ? `<b>≤ ${upTo}</b>` : ""}</li>`
  }).join("")}</ol>`

export const heatMap = ({ traffic, ranks }: RunRecord): string => {
  if (traffic.length === 0) return `<p class="quiet">Nothing moved.</p>`
  const [rows, columns] = [placesOf(traffic.map(({ from }) => from)), placesOf(traffic.map(({ to }) => to))]
  const size = Math.max(6, Math.min(72, Math.floor(560 / Math.max(rows.size, columns.size))))
  const grid = { rows, columns, size }
  const most = traffic.reduce((largest, { bytes }) => Math.max(largest, bytes), 0)
  const heaviest = traffic.find(({ bytes }) => bytes === most)!
  const [width, height] = [columns.size * size, rows.size * size]
  const silent = rows.size < ranks.length || columns.size < ranks.length
  const description = `${traffic.length} pairs of ${ranks.length} ranks; the heaviest is rank ${heaviest.from} to rank ${heaviest.to} with ${formatBytes(most)}. The table of pairs has every number.`
  return `<div class="heatSide" style="--w:${Math.max(280, width + 54)}px"><svg class="heat" role="img" aria-labelledby="heatTitle heatText" viewBox="-46 -40 ${width + 54} ${height + 48}" width="${width + 54}">
<title id="heatTitle">Bytes between ranks</title><desc id="heatText">${escapeHtml(description)}</desc>
<text class="axisName" x="${width / 2}" y="-26">to rank</text><text class="axisName" transform="rotate(-90)" x="${-height / 2}" y="-32">from rank</text>
<rect class="grid" width="${width}" height="${height}"/>${axesOf(grid)}${cellsOf(traffic, grid, most, size >= 60)}</svg>${scaleOf(most)}${silent ? '<p class="quiet">Ranks that send nothing have no row, and those that receive nothing no column.</p>' : ""}</div>`
}
