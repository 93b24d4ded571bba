// SPDX-License-Identifier: Apache-2.0
/**
 * Makes the table and the picture of docs/deltas.md from the model of bytes: what changes cost, and from which share on a full
 * tensor costs less. `--check` writes nothing, and fails if the page or the picture is another one.
 */
import { readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import {
  breakEvenShare,
  expectedChangeBytes,
  expectedListBytes,
  gapBytes,
  listBreakEvenShare
} from "@tensorferry/model/delta/DeltaSize"
import { madeTable } from "./pages/madeTable.ts"

const elements = 2 ** 28
const types = [
  { name: "float32", bytes: 4, color: "#2f6db3" },
  { name: "bfloat16", bytes: 2, color: "#b3562f" },
  { name: "8 bits", bytes: 1, color: "#3f8f5f" }
] as const

const ofFull = (share: number, bytes: number): number =>
  expectedChangeBytes(elements, bytes, share) / (elements * bytes)

const listOfFull = (share: number, bytes: number): number =>
  expectedListBytes(elements, bytes, share) / (elements * bytes)

const percent = (share: number): string => `${(100 * share).toPrecision(3)}%`

const shares = [0.0005, 0.01, 0.03, 0.1, 0.3]
const rowOf = (name: string, bytesOf: typeof ofFull, bytes: number, breakEven: number) => [
  name,
  ...shares.map((share) => {
    const part = bytesOf(share, bytes)
    // From the break-even on, all of it is sent.
    return part < 1 ? percent(part) : "100%"
  }),
  percent(breakEven)
]
madeTable(
  "deltas",
  ["type", ...shares.map((share) => `${Number((100 * share).toPrecision(3))}% changed`), "breaks even at"],
  [
    ...types.map(({ name, bytes }) => rowOf(`${name}, in files`, ofFull, bytes, breakEvenShare(elements, bytes))),
    ...types.map(({ name, bytes }) =>
      rowOf(`${name}, between ranks`, listOfFull, bytes, listBreakEvenShare(bytes, gapBytes))
    )
  ]
)

/** Both axes are logarithmic: decades from 0.01% to 100% across, from 0.01% to 200% up. */
const [left, top, width, height] = [74, 46, 560, 300]
const [fromShare, toShare, fromBytes, toBytes] = [1e-4, 1, 1e-4, 2]
const round = (value: number): string => value.toFixed(1)
const x = (share: number): number => left + (width * Math.log(share / fromShare)) / Math.log(toShare / fromShare)
const y = (part: number): number =>
  top + height - (height * Math.log(Math.min(part, toBytes) / fromBytes)) / Math.log(toBytes / fromBytes)

const line = (bytesOf: typeof ofFull, bytes: number): string =>
  Array.from({ length: 161 }, (_, at) => fromShare * (toShare / fromShare) ** (at / 160))
    .filter((share) => bytesOf(share, bytes) <= toBytes)
    .map((share, at) => `${at === 0 ? "M" : "L"}${round(x(share))} ${round(y(bytesOf(share, bytes)))}`)
    .join("")

const decades = [1e-4, 1e-3, 1e-2, 1e-1, 1]
const label = (share: number): string => `${Number((100 * share).toPrecision(1))}%`

const picture = [
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 420" role="img" aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="13">`,
  `<title id="title">Bytes of changes, as a part of all bytes of a tensor</title>`,
  `<desc id="desc">${types.map(({ name, bytes }) => `${name}: ${percent(ofFull(0.01, bytes))} where 1% changed, break-even at ${percent(breakEvenShare(elements, bytes))}, between ranks ${percent(listOfFull(0.01, bytes))} and ${percent(listBreakEvenShare(bytes, gapBytes))}`).join("; ")}.</desc>`,
  `<rect width="760" height="420" rx="10" fill="#ffffff"/>`,
  `<style>.g{stroke:#d9dee6;stroke-width:1}.f{stroke:#6b7280;stroke-width:1.5;stroke-dasharray:6 4}.l{fill:none;stroke-width:2.5}.r{stroke-width:1.5;stroke-dasharray:3 3}.t{fill:#4b5563}.m{text-anchor:middle}.e{text-anchor:end}.h{fill:#1b2a41;font-weight:600}</style>`,
  `<text class="h" x="${left}" y="26">bytes sent, of those of the full tensor</text>`,
  ...decades.flatMap((share) => [
    `<line class="g" x1="${round(x(share))}" x2="${round(x(share))}" y1="${top}" y2="${top + height}"/>`,
    `<text class="t m" x="${round(x(share))}" y="${top + height + 20}">${label(share)}</text>`,
    `<line class="g" x1="${left}" x2="${left + width}" y1="${round(y(share))}" y2="${round(y(share))}"/>`,
    `<text class="t e" x="${left - 8}" y="${round(y(share) + 4)}">${label(share)}</text>`
  ]),
  `<line class="f" x1="${left}" x2="${left + width}" y1="${round(y(1))}" y2="${round(y(1))}"/>`,
  ...types.map(({ bytes, color }) => `<path class="l" stroke="${color}" d="${line(ofFull, bytes)}"/>`),
  ...types.map(({ bytes, color }) => `<path class="l r" stroke="${color}" d="${line(listOfFull, bytes)}"/>`),
  ...types.map(
    ({ bytes, color }) =>
      `<circle cx="${round(x(breakEvenShare(elements, bytes)))}" cy="${round(y(1))}" r="4.5" fill="${color}"/>` +
      `<circle cx="${round(x(listBreakEvenShare(bytes, gapBytes)))}" cy="${round(y(1))}" r="4" fill="#ffffff" stroke="${color}" stroke-width="1.5"/>`
  ),
  ...types.flatMap(({ bytes, color, name }, at) => [
    `<line x1="646" x2="666" y1="${120 + 24 * at}" y2="${120 + 24 * at}" stroke="${color}" stroke-width="2.5"/>`,
    `<text class="t" x="672" y="${124 + 24 * at}">${name}</text>`,
    `<text class="t" x="646" y="${216 + 20 * at}" fill="${color}">${percent(breakEvenShare(elements, bytes))}</text>`,
    `<text class="t" x="702" y="${216 + 20 * at}" fill="${color}">${percent(listBreakEvenShare(bytes, gapBytes))}</text>`
  ]),
  `<text class="t" x="646" y="196">break-even</text>`,
  `<text class="t" x="646" y="292">dashed, and at</text>`,
  `<text class="t" x="646" y="308">the right:</text>`,
  `<text class="t" x="646" y="324">between ranks</text>`,
  `<text class="t m" x="${left + width / 2}" y="${top + height + 46}">elements that changed</text>`,
  `</svg>`
].join("\n")

const file = path.join(import.meta.dirname, "../docs/images/deltas.svg")
if (!process.argv.includes("--check")) writeFileSync(file, `${picture}\n`)
else if (readFileSync(file, "utf8") !== `${picture}\n`) {
  console.error("docs/images/deltas.svg is not what the sources say; run: node scripts/deltas-doc.ts")
  process.exitCode = 1
}
