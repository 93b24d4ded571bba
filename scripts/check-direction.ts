/**
 * Imports inside packages/core/src go to the same folder or to one of lower rank, and files form no cycle.
 */
import { readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "../packages/core/src")
const ranks: Readonly<Record<string, number>> = {
  base: 0,
  socket: 1,
  tensor: 1,
  layout: 2,
  checkpoint: 2,
  ir: 3,
  planner: 4,
  service: 5,
  group: 6,
  transform: 6,
  copy: 7,
  trace: 7,
  reshard: 8,
  mesh: 9,
  replay: 8,
  refit: 10,
  backend: 10
}
const pure = new Set(["base", "layout", "ir", "planner"])
const impure = /^effect\/(Effect|Layer|Context|Scope|Fiber|Deferred|Stream)$/

const files = readdirSync(root, { recursive: true, encoding: "utf8" }).filter((file) => file.endsWith(".ts"))
const faults: Array<string> = []
const graph = new Map<string, ReadonlyArray<string>>()

for (const file of files) {
  const text = readFileSync(path.join(root, file), "utf8")
  const statements = [...text.matchAll(/^(?:import|export)\s+(type\s+)?[^"']*?from\s+["']([^"']+)["']/gm)]
  const folder = file.split(path.sep)[0]!
  if (file === "index.ts") continue
  const own = ranks[folder]
  if (own === undefined) faults.push(`${file}: folder ${folder} has no rank`)
  const imported: Array<string> = []
  for (const [, , from] of statements) {
    if (pure.has(folder) && impure.test(from!)) faults.push(`${file}: pure code imports ${from}`)
    if (!from!.startsWith(".")) continue
    const target = path.relative(root, path.resolve(root, path.dirname(file), from!))
    imported.push(target)
    const [theirFolder] = target.split(path.sep)
    const theirs = ranks[theirFolder!]
    if (theirFolder !== folder && own !== undefined && (theirs === undefined || theirs >= own))
      faults.push(`${file}: imports ${target}, which is not of lower rank`)
  }
  graph.set(file, imported)
}

const state = new Map<string, "open" | "done">()
const visit = (file: string, trail: ReadonlyArray<string>): void => {
  if (state.get(file) === "done") return
  if (state.get(file) === "open") {
    faults.push(`cycle: ${[...trail.slice(trail.indexOf(file)), file].join(" -> ")}`)
    return
  }
  state.set(file, "open")
  for (const next of graph.get(file) ?? []) visit(next, [...trail, file])
  state.set(file, "done")
}
for (const file of graph.keys()) visit(file, [])

if (faults.length > 0) {
  console.error(faults.join("\n"))
  process.exitCode = 1
} else console.log(`direction: ${files.length} files of core, no fault`)
