// SPDX-License-Identifier: Apache-2.0
/**
 * Merges the modules of @tensorferry/core as they are published: one file for a folder of the sources or a few, so that Node
 * finds, reads and links a dozen files where there are 160. Every public module keeps a file under its own name, in `modules`,
 * which hands on what is in the merged one; a value is the same by whichever name it is imported.
 *
 * Other packages stay outside: an application has one `effect`, and core uses that one.
 */
import { readFileSync, rmSync } from "node:fs"
import * as path from "node:path"
import { rolldown } from "rolldown"

const core = path.resolve(import.meta.dirname, "../packages/core")
const sources = path.join(core, "src")

/** In `dist`, beside the types of the single modules. */
export const mergedFolder = path.join(core, "dist/merged")

/**
 * The files that are made, by rank (scripts/check-direction.ts): a folder imports from those before it, so merged files do
 * too. Folders that an application always loads together share a file; the one
 * module of `config` needs none. */
export const mergedFiles: Readonly<Record<string, ReadonlyArray<string>>> = {
  base: ["base", "tensor"],
  layout: ["layout"],
  ir: ["ir"],
  planner: ["planner"],
  copy: ["service", "group", "copy"],
  transform: ["transform"],
  reshard: ["trace", "reshard", "refit"],
  replay: ["replay"],
  backend: ["backend"]
}

export const mergeCore = async (folder = mergedFolder): Promise<void> => {
  const { exports } = JSON.parse(readFileSync(path.join(core, "package.json"), "utf8")) as {
    readonly exports: Readonly<Record<string, string>>
  }
  const modules = Object.values(exports)
    .filter((file) => file.endsWith(".ts"))
    .map((file) => [file.slice("./src/".length, -".ts".length), path.join(core, file)] as const)
  rmSync(folder, { recursive: true, force: true })
  const bundle = await rolldown({
    input: Object.fromEntries(modules),
    external: /^[^./]/,
    platform: "node",
    preserveEntrySignatures: "strict"
  })
  await bundle.write({
    dir: folder,
    format: "esm",
    // The sources are published beside them.
    sourcemap: true,
    sourcemapExcludeSources: true,
    minifyInternalExports: false,
    entryFileNames: "modules/[name].js",
    chunkFileNames: "[name].js",
    codeSplitting: {
      // A folder also takes what it depends on; those before it have taken theirs.
      groups: Object.entries(mergedFiles).map(([name, folders], rank, { length }) => ({
        name,
        test: (id) => folders.some((folder) => id.startsWith(path.join(sources, folder) + path.sep)),
        priority: length - rank
      }))
    }
  })
  await bundle.close()
}

if (process.argv[1] === import.meta.filename) await mergeCore(process.argv[2])
