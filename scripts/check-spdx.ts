// SPDX-License-Identifier: Apache-2.0
/**
 * Every source file names its licence in its first line, or in the second where the first is a `#!` line. With --write the
 * line is added where it is missing.
 *   node scripts/check-spdx.ts [--write]
 *
 * The line stands above the block that says what the file owns, so that tools which read the top of a file find it, and the
 * block stays what readers see first in a reference.
 */
import { execFileSync } from "node:child_process"
import { existsSync, readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"

const licence = "SPDX-License-Identifier: Apache-2.0"

/** How each kind of file begins a comment of one line. */
const kinds: ReadonlyArray<readonly [files: RegExp, mark: string]> = [
  [/\.([cm]?ts|[cm]?js|cc|h|cu)$/, "//"],
  [/(\.(cmake|py|sh)|(^|\/)CMakeLists\.txt)$/, "#"]
]

const root = path.resolve(import.meta.dirname, "..")
const listed = execFileSync("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"], {
  cwd: root,
  encoding: "utf8",
  maxBuffer: 1 << 28
})
const isWriting = process.argv.includes("--write")
const missing: Array<string> = []
let count = 0

for (const file of listed.split("\0")) {
  const mark = kinds.find(([files]) => files.test(file))?.[1]
  const full = path.join(root, file)
  if (mark === undefined || !existsSync(full)) continue
  count++
  const text = readFileSync(full, "utf8")
  const line = `${mark} ${licence}\n`
  const start = /^#!.*\n/.exec(text)?.[0].length ?? 0
  if (text.startsWith(line, start)) continue
  missing.push(file)
  if (isWriting) writeFileSync(full, `${text.slice(0, start)}${line}${text.slice(start)}`)
}

if (isWriting) console.log(`spdx: added to ${missing.length} of ${count} files`)
else if (missing.length > 0) {
  console.error(
    `${missing.join("\n")}\nspdx: ${missing.length} of ${count} files lack the line; node scripts/check-spdx.ts --write adds it`
  )
  process.exitCode = 1
} else console.log(`spdx: ${count} files, no fault`)
