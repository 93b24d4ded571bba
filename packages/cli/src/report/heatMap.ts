/** Bytes from every rank to every rank, as a picture whose shades are steps of one scale. */
import { formatBytes } from "../output/Table.ts"
import { escapeHtml } from "./html.ts"
import type { RecordedTraffic, RunRecord } from "./RunRecord.ts"

const steps = 8
/** More cells than this are drawn as one shape per shade, and named only by the table of pairs. */
const namedCells = 4_096

/** Shades follow the square root, so that small pairs are seen beside large ones. */
const shadeOf = (bytes: number, most: number): number =>
  Math.max(1, Math.min(steps, Math.ceil(Math.sqrt(bytes / most) * steps)))

const cellsOf = (traffic: ReadonlyArray<RecordedTraffic>, size: number, most: number, withText: boolean): string => {
  if (traffic.length > namedCells) {
    const shapes = new Map<number, string>()
    for (const { from, to, bytes } of traffic) {
      const shade = shadeOf(bytes, most)
      shapes.set(shade, `${shapes.get(shade) ?? ""}M${to * size} ${from * size}h${size}v${size}h-${size}z`)
    }
    return [...shapes].map(([shade, path]) => `<path class="shade${shade}" d="${path}"/>`).join("")
  }
  return traffic
    .map(({ from, to, bytes, path, reason }) => {
      const shade = shadeOf(bytes, most)
      const [x, y, inner] = [to * size + 1, from * size + 1, size - 2]
      const label = `rank ${from} → rank ${to}: ${formatBytes(bytes)} by ${path} (${reason})`
      const text = withText
        ? `<text class="${shade > steps / 2 ? "onShade" : "cellText"}" x="${to * size + size / 2}" y="${from * size + size / 2 + 4}">${escapeHtml(formatBytes(bytes))}</text>`
        : ""
      return `<g><title>${escapeHtml(label)}</title><rect class="shade${shade}${from === to ? " ownRank" : ""}" x="${x}" y="${y}" width="${inner}" height="${inner}" rx="${size > 24 ? 4 : 0}"/>${text}</g>`
    })
    .join("")
}

const axisOf = (ranks: number, size: number): string => {
  const every = Math.max(1, Math.ceil(22 / size))
  const labels = Array.from({ length: Math.ceil(ranks / every) }, (_, at) => at * every)
  return labels
    .map((rank) => {
      const middle = rank * size + size / 2
      return `<text class="axis" x="${middle}" y="-8">${rank}</text><text class="axis end" x="-8" y="${middle + 4}">${rank}</text>`
    })
    .join("")
}

/** Steps of the scale with the bytes that each reaches to. */
const scaleOf = (most: number): string =>
  `<ol class="scale" aria-label="Shades">${Array.from({ length: steps }, (_, at) => {
    const upTo = formatBytes(Math.round(((at + 1) / steps) ** 2 * most))
    return `<li><span class="swatch shade${at + 1}"></span>${at % 2 === 1 ? `<b>≤ ${upTo}</b>` : ""}</li>`
  }).join("")}</ol>`

export const heatMap = ({ traffic, ranks }: RunRecord): string => {
  if (traffic.length === 0) return `<p class="quiet">Nothing moved.</p>`
  const count = Math.max(...ranks.map(({ rank }) => rank), ...traffic.flatMap(({ from, to }) => [from, to])) + 1
  const size = Math.max(6, Math.min(72, Math.floor(560 / count)))
  const most = traffic.reduce((largest, { bytes }) => Math.max(largest, bytes), 0)
  const heaviest = traffic.find(({ bytes }) => bytes === most)!
  const side = count * size
  const description = `${traffic.length} pairs of ${count} ranks; the heaviest is rank ${heaviest.from} to rank ${heaviest.to} with ${formatBytes(most)}. The table of pairs has every number.`
  return `<svg class="heat" role="img" aria-labelledby="heatTitle heatText" viewBox="-46 -40 ${side + 54} ${side + 48}" width="${side + 54}">
<title id="heatTitle">Bytes between ranks</title><desc id="heatText">${escapeHtml(description)}</desc>
<text class="axisName" x="${side / 2}" y="-26">to rank</text><text class="axisName" transform="rotate(-90)" x="${-side / 2}" y="-32">from rank</text>
<rect class="grid" width="${side}" height="${side}"/>${axisOf(count, size)}${cellsOf(traffic, size, most, size >= 60)}</svg>${scaleOf(most)}`
}
