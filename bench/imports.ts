/**
 * What importing costs beyond Node's own start: processes started one after the other, in turns. Compiled code is kept
 * between starts for the command alone, as it does for its users.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { type BenchResult, median } from "./measure.ts"

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))

/** What is published is JavaScript; sources are TypeScript that Node strips at every start. */
const core = here("../packages/core/dist/index.js")
const command = here("../packages/cli/dist/main.js")

const starts: Readonly<Record<string, ReadonlyArray<string>>> = {
  node: ["-e", "0"],
  effect: ["-e", 'import("effect/Schema")'],
  core: ["-e", `import(${JSON.stringify(core)})`],
  help: [command, "--help"]
}

const rounds = 15

export const imports = (): ReadonlyArray<BenchResult> => {
  const cache = mkdtempSync(path.join(tmpdir(), "tensorferry-imports-"))
  const { NODE_COMPILE_CACHE: _, ...environment } = process.env
  const times: Readonly<Record<string, Array<number>>> = Object.fromEntries(
    Object.keys(starts).map((name) => [name, []])
  )
  try {
    for (let round = 0; round <= rounds; round++) {
      for (const [name, args] of Object.entries(starts)) {
        const begun = performance.now()
        spawnSync(process.execPath, args, {
          cwd: here("."),
          env: { ...environment, XDG_CACHE_HOME: cache },
          stdio: "ignore"
        })
        // The first round fills the caches.
        if (round > 0) times[name]!.push(performance.now() - begun)
      }
    }
  } finally {
    rmSync(cache, { recursive: true, force: true })
  }
  const medians = Object.fromEntries(Object.entries(times).map(([name, all]) => [name, median(all)]))
  const over = (name: string): number => medians[name]! - medians.node!
  const row = (name: string, ours: number, target?: number): BenchResult => ({
    case: name,
    unit: "ms",
    ours,
    lowerIsBetter: true,
    ...(target === undefined ? {} : { target })
  })
  return [
    row("Node's own start", medians.node!),
    row("import effect/Schema, over Node's start", over("effect")),
    row("import @tensorferry/core, over Node's start", over("core"), 150),
    row("tensorferry --help, over Node's start", over("help"), 300)
  ]
}
