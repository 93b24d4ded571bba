// SPDX-License-Identifier: Apache-2.0
/** Tables of pages that are made from the sources and from recorded data: written, or with `--check` only compared. */
import { readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { gunzipSync } from "node:zlib"

const root = path.resolve(import.meta.dirname, "../..")

/** Data of the repository. */
export const unzipped = (file: string): unknown =>
  JSON.parse(gunzipSync(readFileSync(path.join(root, file))).toString("utf8"))

type Row = ReadonlyArray<string>

/** Puts a table between the marks of docs/NAME.md, or fails where another one stands there. */
export const madeTable = (name: string, header: Row, rows: ReadonlyArray<Row>): void => {
  const page = path.join(root, `docs/${name}.md`)
  const script = `scripts/${name}-doc.ts`
  const [begin, end] = [`<!-- Made by ${script}. Do not edit. -->`, "<!-- End of the table. -->"]
  const text = readFileSync(page, "utf8")
  const [before, rest] = text.split(begin)
  const after = rest?.split(end)[1]
  const lines = [header, header.map(() => "---"), ...rows].map((row) => `| ${row.join(" | ")} |`)
  const made = `${before}${begin}\n${lines.join("\n")}\n${end}${after}`
  if (rest === undefined || after === undefined) {
    console.error(`docs/${name}.md lacks the marks ${begin} and ${end}`)
    process.exitCode = 1
  } else if (!process.argv.includes("--check")) writeFileSync(page, made)
  else if (made !== text) {
    console.error(`docs/${name}.md is not what the sources say; run: node ${script}`)
    process.exitCode = 1
  }
}
