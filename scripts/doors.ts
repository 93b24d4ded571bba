// SPDX-License-Identifier: Apache-2.0
/**
 * The doors of packages: `exports` lists what is public by name, and nothing is public without words.
 *   node scripts/doors.ts [--write]
 * Checks that no entry is a pattern, that each leads to a module, that `publishConfig` says the same of the compiled
 * modules, that every public name has a comment, and that pages and examples name nothing that is closed. --write sorts the
 * entries and makes `publishConfig` from them.
 */
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { withoutWords } from "./doors/words.ts"
import { readTree, type SourceFile } from "./house/tree.ts"

const root = path.resolve(import.meta.dirname, "..")

type Entry = string | Readonly<Record<string, string>>
interface Manifest {
  readonly name: string
  readonly private?: boolean
  exports?: Record<string, Entry>
  publishConfig?: { exports?: Record<string, Entry> }
}

const faults: Array<string> = []

/** An entry of the sources, as it is published. Core's modules are merged (scripts/merge-core.ts). */
const published = (name: string, entry: Entry): Entry => {
  if (typeof entry !== "string" || !entry.startsWith("./src/")) return entry
  const module = entry.slice("./src/".length).replace(/\.ts$/, "")
  const folder = name === "@tensorferry/core" ? "dist/merged/modules" : "dist"
  return { types: `./dist/${module}.d.ts`, default: `./${folder}/${module}.js` }
}

/** The modules that a door opens: its own, and those whose names it exports. */
const opened = (source: SourceFile): ReadonlyArray<SourceFile> => {
  const found = new Set([source])
  for (const file of found) {
    for (const [, from] of file.text.matchAll(/^(?:export [^;]*?|import \* as \w+) from "(\.[^"]+)"/gm)) {
      const next = tree.byPath.get(path.posix.join(path.posix.dirname(file.path), from!))
      if (next !== undefined) found.add(next)
    }
  }
  return [...found]
}

/** The package itself first, its manifest last, modules by name between them. */
const place = (key: string): string => (key === "." ? "" : key === "./package.json" ? "\uffff" : key)
const sorted = (exports: Record<string, Entry>): Record<string, Entry> =>
  Object.fromEntries(Object.entries(exports).sort(([left], [right]) => (place(left) < place(right) ? -1 : 1)))

const isWriting = process.argv.includes("--write")
const tree = readTree(root)

for (const { folder } of tree.packages) {
  const file = path.join(root, folder, "package.json")
  const text = readFileSync(file, "utf8")
  const manifest = JSON.parse(text) as Manifest
  const { name, exports = {} } = manifest
  manifest.exports = sorted(exports)
  if (manifest.private !== true) {
    const entries = Object.entries(manifest.exports).map(([key, entry]) => [key, published(name, entry)] as const)
    manifest.publishConfig = { ...manifest.publishConfig, exports: Object.fromEntries(entries) }
  }
  const wanted = `${JSON.stringify(manifest, null, 2)}\n`
  if (isWriting) writeFileSync(file, wanted)
  else if (wanted !== text) faults.push(`${folder}/package.json: run node scripts/doors.ts --write`)
  for (const [key, entry] of Object.entries(exports)) {
    if (key.includes("*")) faults.push(`${folder}: ${key} opens modules that nobody named`)
    if (typeof entry !== "string" || !entry.endsWith(".ts")) continue
    const source = tree.byPath.get(path.posix.join(folder, entry))
    if (source === undefined) faults.push(`${folder}: ${key} leads to ${entry}, which is not there`)
    else if (manifest.private !== true) {
      for (const { at, what } of opened(source).flatMap(withoutWords))
        faults.push(`${at}: ${what} is public without words`)
    }
  }
}

/** Pages name modules in text and in code; both must be doors. */
const isOpen = (specifier: string): boolean => {
  const owner = tree.packages.find(({ name }) => specifier === name || specifier.startsWith(`${name}/`))
  if (owner === undefined) return true
  const table = owner.exports as Readonly<Record<string, unknown>>
  const key = `.${specifier.slice(owner.name.length)}`
  // Prose may name a folder of doors.
  return key in table || Object.keys(table).some((door) => door.startsWith(`${key}/`))
}
const markdownIn = (folder: string): ReadonlyArray<string> =>
  readdirSync(path.join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".md") && !/(^|\/)(node_modules|adr|reference|dist)\//.test(file))
    .map((file) => path.join(folder, file))
const pages = ["README.md", ...["docs", "examples"].flatMap(markdownIn)]
for (const page of pages) {
  for (const [at, line] of readFileSync(path.join(root, page), "utf8").split("\n").entries()) {
    for (const [specifier] of line.matchAll(/@tensorferry\/[a-z-]+(\/[A-Za-z][\w/]*)?/g)) {
      if (!isOpen(specifier)) faults.push(`${page}:${at + 1}: ${specifier} is no door`)
    }
  }
}

if (faults.length > 0) {
  console.error(faults.join("\n"))
  process.exitCode = 1
} else {
  const count = tree.packages.reduce((sum, { exports }) => sum + Object.keys(exports as object).length - 1, 0)
  console.log(`doors: ${count} public modules, each with words`)
}
