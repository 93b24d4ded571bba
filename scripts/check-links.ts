// SPDX-License-Identifier: Apache-2.0
/**
 * Relative links of pages lead to files that exist, and to headings that are there. So a page that names a file fails the
 * check when the file moves.
 */
import { execFileSync } from "node:child_process"
import { existsSync, readFileSync } from "node:fs"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "..")

/** Pages that releases write, and pages that are made. */
const passedOver = /(^|\/)CHANGELOG\.md$/

/** As code hosts name a heading: lower case, without punctuation, spaces as hyphens. */
const anchorOf = (heading: string): string =>
  heading
    .trim()
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, "")
    .replaceAll(/\s/g, "-")

/** A page without its fenced blocks, whose brackets are no links. */
const proseOf = (page: string): string => page.replaceAll(/^\s*(```+)[^\n]*\n[\s\S]*?^\s*\1\s*$/gm, "")

const anchors = new Map<string, ReadonlySet<string>>()
const anchorsOf = (file: string): ReadonlySet<string> => {
  const known = anchors.get(file)
  if (known !== undefined) return known
  const headings = [...proseOf(readFileSync(file, "utf8")).matchAll(/^#{1,6}\s+(.*)$/gm)]
  const found = new Set(headings.map((heading) => anchorOf(heading[1]!)))
  anchors.set(file, found)
  return found
}

const listed = execFileSync("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"], {
  cwd: root,
  encoding: "utf8"
})
const pages = listed
  .split("\0")
  .filter((name) => name !== "" && !passedOver.test(name) && existsSync(path.join(root, name)))

const faults: Array<string> = []
let count = 0
for (const page of pages) {
  for (const [, target] of proseOf(readFileSync(path.join(root, page), "utf8")).matchAll(/\]\(([^)\s]+)\)/g)) {
    if (/^[a-z][a-z+.-]*:/i.test(target!)) continue
    count++
    const [file, anchor] = target!.split("#") as [string, string | undefined]
    const full = file === "" ? path.join(root, page) : path.resolve(root, path.dirname(page), decodeURIComponent(file))
    if (!existsSync(full)) faults.push(`${page}: ${target}: no such file`)
    else if (anchor !== undefined && full.endsWith(".md") && !anchorsOf(full).has(anchor))
      faults.push(`${page}: ${target}: no such heading`)
  }
}
if (faults.length > 0) {
  console.error(faults.join("\n"))
  process.exitCode = 1
} else console.log(`links: ${count} links of ${pages.length} pages, no fault`)
