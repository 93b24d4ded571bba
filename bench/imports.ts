// SPDX-License-Identifier: Apache-2.0
/**
 * What importing costs beyond Node's own start: processes started one after the other, in turns. Imports are a stranger's:
 * packages by their names, in what is published. Rows of effect alone are the floor: what core builds on, and cannot
 * bring along, because an application has one effect.
 */
import { spawnSync } from "node:child_process"
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import { mergeCore } from "../scripts/merge-core.ts"
import type { BenchResult } from "./measure.ts"

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))

/** Core as it is published, and its effect, in the `node_modules` of a folder outside. */
const makeStranger = (): string => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-imports-"))
  const core = path.join(folder, "node_modules/@tensorferry/core")
  mkdirSync(core, { recursive: true })
  const { publishConfig, ...manifest } = JSON.parse(readFileSync(here("../packages/core/package.json"), "utf8")) as {
    readonly publishConfig: { readonly exports: unknown }
  }
  writeFileSync(path.join(core, "package.json"), JSON.stringify({ ...manifest, exports: publishConfig.exports }))
  symlinkSync(here("../packages/core/dist"), path.join(core, "dist"))
  symlinkSync(realpathSync(here("../node_modules/effect")), path.join(folder, "node_modules/effect"))
  return folder
}

const importing = (...names: ReadonlyArray<string>): ReadonlyArray<string> => [
  "--input-type=module",
  "-e",
  names.map((name) => `import ${JSON.stringify(name)}`).join("\n")
]

const command = here("../packages/cli/dist/main.js")

interface Start {
  readonly name: string
  readonly args: ReadonlyArray<string>
  readonly target?: number
  /** With `NODE_COMPILE_CACHE`, which is the application's choice. */
  readonly isCached?: boolean
}

const node: Start = { name: "Node's own start", args: importing() }
const starts: ReadonlyArray<Start> = [
  node,
  { name: "import effect/Effect and effect/Layer", args: importing("effect/Effect", "effect/Layer") },
  {
    name: "import these and effect/Schema: core's floor",
    args: importing("effect/Effect", "effect/Layer", "effect/Schema")
  },
  {
    name: "import @tensorferry/core/planner/RosterPlanner alone",
    args: importing("@tensorferry/core/planner/RosterPlanner")
  },
  { name: "import @tensorferry/core", args: importing("@tensorferry/core"), target: 150 },
  { name: "the same with NODE_COMPILE_CACHE", args: importing("@tensorferry/core"), isCached: true },
  { name: "tensorferry --help", args: [command, "--help"], target: 300 },
  // Not one of the texts that are kept: the parser and all that it needs are loaded.
  { name: "tensorferry, until its arguments are read", args: [command, "--log-level", "none", "--version"] }
]

const rounds = 15

export const imports = async (): Promise<ReadonlyArray<BenchResult>> => {
  await mergeCore()
  // As packing does: the published command answers --help from texts.
  const texts = path.join(path.dirname(command), "helpTexts.json")
  const rendered = spawnSync(process.execPath, [here("../packages/cli/scripts/help-texts.ts"), texts], {
    encoding: "utf8"
  })
  if (rendered.status !== 0) throw new Error(`help-texts.ts ended with ${rendered.status}: ${rendered.stderr}`)
  const folder = makeStranger()
  const { NODE_COMPILE_CACHE: _, ...environment } = process.env
  const times = new Map(starts.map((start) => [start, [] as Array<number>]))
  try {
    for (let round = 0; round <= rounds; round++) {
      for (const [start, all] of times) {
        const begun = performance.now()
        const { status } = spawnSync(process.execPath, start.args, {
          cwd: folder,
          env: {
            ...environment,
            XDG_CACHE_HOME: path.join(folder, "cache"),
            ...(start.isCached === true ? { NODE_COMPILE_CACHE: path.join(folder, "compiled") } : {})
          },
          stdio: "ignore"
        })
        if (status !== 0) throw new Error(`${start.name}: ended with ${status}`)
        // The first round fills the caches.
        if (round > 0) all.push(performance.now() - begun)
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  const own = median(times.get(node)!)
  return [...times].map(([start, all]) => ({
    case: start === node ? start.name : `${start.name}, over Node's start`,
    unit: "ms",
    ours: start === node ? own : median(all) - own,
    lowerIsBetter: true,
    ...(start.target === undefined ? {} : { target: start.target })
  }))
}
