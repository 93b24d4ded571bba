// SPDX-License-Identifier: Apache-2.0
/**
 * Imports of sources go one way: to a package of lower rank, and inside a package to a folder of lower rank. Types count
 * as values do. No circle joins modules or packages, nobody imports the index of their own package, and a package
 * declares what its sources import. Tests, benches and scripts may import every package; only sources are held to ranks.
 */
import { readFileSync } from "node:fs"
import * as path from "node:path"
import { circles } from "./house/circles.ts"
import { moduleOf } from "./house/syntax.ts"
import { readTree, type SourceFile } from "./house/tree.ts"

interface Room {
  readonly rank: number
  /** Ranks of the folders in `src`. Files beside them have none: circles are what they are held to. */
  readonly folders?: Readonly<Record<string, number>>
}

/** Simulators and golden have the highest ranks, so that no source of another package can import them. */
const packages: Readonly<Record<string, Room>> = {
  core: {
    rank: 0,
    folders: {
      base: 0,
      tensor: 1,
      layout: 2,
      ir: 3,
      planner: 4,
      service: 5,
      group: 6,
      transform: 6,
      copy: 7,
      trace: 7,
      reshard: 8,
      replay: 8,
      refit: 10,
      config: 10,
      backend: 10
    }
  },
  native: { rank: 1, folders: { digest: 0, driver: 0, staged: 1, joined: 2 } },
  model: {
    rank: 1,
    folders: {
      checkpoint: 0,
      stream: 1,
      layout: 1,
      structure: 1,
      pickle: 1,
      families: 2,
      forms: 2,
      torch: 2,
      values: 2,
      describe: 3,
      inputs: 3,
      quantize: 3,
      placement: 4,
      quantized: 4,
      outputs: 4,
      names: 5,
      delta: 6,
      proof: 5
    }
  },
  replay: { rank: 1 },
  gpu: { rank: 2 },
  testing: {
    rank: 2,
    folders: { machine: 0, values: 0, conformance: 1, lies: 1, transfers: 1, planning: 2, ring: 2, names: 3 }
  },
  "backend-torch-copy": { rank: 3, folders: { tcp: 0 } },
  "backend-cuda": { rank: 3, folders: { planning: 0 } },
  "backend-nvshmem": { rank: 3, folders: { planning: 0 } },
  "backend-tcp": { rank: 3 },
  "backend-ucx": { rank: 3 },
  "backend-xpu": { rank: 3 },
  bus: {
    rank: 3,
    folders: { socket: 0, wire: 0, store: 1, command: 1, payload: 1, state: 2, queue: 3, agent: 4, client: 4 }
  },
  fleet: {
    rank: 4,
    folders: { topology: 0, fanout: 1, version: 0, edges: 0, progress: 1, shards: 2, simulate: 2, service: 3, view: 4 }
  },
  cli: {
    rank: 5,
    folders: {
      text: 0,
      model: 0,
      machine: 1,
      device: 1,
      replay: 1,
      job: 2,
      output: 3,
      fleet: 3,
      report: 4,
      watch: 5,
      backends: 5,
      commands: 6
    }
  },
  simulators: { rank: 6 },
  golden: { rank: 6 }
}

/** Folders of core whose code computes, and runs no effect. */
const pure = new Set(["base", "layout", "ir", "planner"])
const impure = /^effect\/(Effect|Layer|Context|Scope|Fiber|Deferred|Stream)$/

/** Faults that are known, each with what ends it. A line whose fault is mended is a fault itself. */
const known: Readonly<Record<string, string>> = {}

const tree = readTree(path.resolve(import.meta.dirname, ".."))
const faults = new Map<string, Array<string>>()
const tell = (kind: string, text: string): unknown => faults.get(kind)?.push(text) ?? faults.set(kind, [text])

/** Package and folder of a source; the folder is the file's own name where it lies in none. */
const placeOf = (file: string): readonly [owner: string, folder: string] | undefined => {
  const found = /^(?:packages\/)?([^/]+)\/src\/([^/]+)/.exec(file)
  return found === null ? undefined : [found[1]!, found[2]!]
}

const declared = new Map<string, ReadonlySet<string>>()
const isDeclared = (owner: string, folder: string, name: string): boolean => {
  if (!declared.has(owner)) {
    const manifest: { readonly dependencies?: object; readonly peerDependencies?: object } = JSON.parse(
      readFileSync(path.join(tree.root, folder, "package.json"), "utf8")
    )
    declared.set(owner, new Set(Object.keys({ ...manifest.dependencies, ...manifest.peerDependencies })))
  }
  return declared.get(owner)!.has(name)
}

const checkPackage = (file: SourceFile, at: string, own: string, theirs: string): void => {
  const [mine, other] = [packages[own], packages[theirs]]
  if (own === theirs) return void tell("own name", `${at}: imports its own package by name`)
  if (other === undefined)
    return void tell("unknown", `${at}: package ${theirs} has no rank in scripts/check-direction.ts`)
  if (mine !== undefined && other.rank >= mine.rank)
    tell(`${own} -> ${theirs}`, `${at}: ${own} imports ${theirs}, which is not of lower rank`)
  if (!isDeclared(own, file.area, `@tensorferry/${theirs}`))
    tell("undeclared", `${at}: imports ${theirs}, which package.json has among no dependencies`)
}

const checkFolder = (at: string, [own, folder]: readonly [string, string], target: string): void => {
  const place = placeOf(target)
  if (place === undefined || place[0] !== own)
    return void tell("outside", `${at}: imports ${target}, which is no source of its own package`)
  const to = place[1]
  const ranks = packages[own]?.folders ?? {}
  if (to === folder) return
  if (to === "index.ts") tell(`${own}/${folder} -> ${own}/index.ts`, `${at}: imports the index of its own package`)
  else if (folder in ranks && to in ranks && ranks[to]! >= ranks[folder]!)
    tell(`${own}/${folder} -> ${own}/${to}`, `${at}: folder ${folder} imports ${target}, which is not of lower rank`)
}

const sources = tree.files.filter((file) => file.language === "ts" && placeOf(file.path) !== undefined)
for (const file of sources) {
  const place = placeOf(file.path)!
  const [own, folder] = place
  if (packages[own] === undefined)
    tell("unknown", `${file.path}: package ${own} has no rank in scripts/check-direction.ts`)
  else if (!folder.endsWith(".ts") && packages[own].folders?.[folder] === undefined)
    tell("unknown", `${file.path}: folder ${folder} of ${own} has no rank in scripts/check-direction.ts`)
  for (const { specifier, line } of moduleOf(file).imports) {
    const at = `${file.path}:${line}`
    const theirs = /^@tensorferry\/([^/]+)/.exec(specifier)?.[1]
    if (theirs !== undefined) checkPackage(file, at, own, theirs)
    else if (specifier.startsWith("."))
      checkFolder(at, place, path.posix.join(path.posix.dirname(file.path), specifier))
    else if (own === "core" && pure.has(folder) && impure.test(specifier))
      tell("impure", `${at}: pure code imports ${specifier}`)
  }
}
for (const { offenders = [] } of circles(tree))
  for (const { at, name } of offenders) {
    const circle = name.replaceAll(/packages\/|\bsrc\//g, "")
    tell(circle, `${at}: circle ${circle}`)
  }

const kinds = [...faults.keys()].filter((kind) => known[kind] !== undefined)
for (const kind of Object.keys(known))
  if (!faults.has(kind)) tell("mended", `${kind}: is mended, so its line in scripts/check-direction.ts goes`)
const open = [...faults].filter(([kind]) => known[kind] === undefined).flatMap(([, texts]) => texts)
if (open.length > 0) {
  console.error(open.join("\n"))
  process.exitCode = 1
} else console.log(`direction: ${sources.length} sources, no new fault; known: ${kinds.join(", ") || "none"}`)
