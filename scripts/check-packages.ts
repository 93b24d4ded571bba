// SPDX-License-Identifier: Apache-2.0
/**
 * What a package of the workspace needs so that the compiler, the command and the pages see it. Each of these is silent
 * where it is forgotten: a package without a reference is not compiled, a backend without `descriptors` is not found.
 */
import { existsSync, readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "..")
const faults: Array<string> = []
const json = (file: string) => JSON.parse(readFileSync(path.join(root, file), "utf8"))

/** Folders that a configuration refers to, from the root; the file's name left out. */
const references = (file: string): ReadonlySet<string> =>
  new Set(
    ((json(file).references ?? []) as ReadonlyArray<{ readonly path: string }>).map((each) =>
      path.posix.normalize(path.posix.join(path.posix.dirname(file), each.path)).replace(/\/tsconfig[^/]*\.json$/, "")
    )
  )

const compiled = references("tsconfig.json")
const folders = readdirSync(path.join(root, "packages"))
  .map((name) => `packages/${name}`)
  .filter((folder) => existsSync(path.join(root, folder, "package.json")))
const folderOf = new Map(folders.map((folder) => [json(`${folder}/package.json`).name as string, folder]))

for (const folder of folders) {
  const manifest = json(`${folder}/package.json`)
  if (!compiled.has(folder)) faults.push(`tsconfig.json: add ${folder} to its references, or nothing compiles it`)
  const own = references(`${folder}/tsconfig.src.json`)
  for (const name of Object.keys({ ...manifest.dependencies, ...manifest.peerDependencies })) {
    const needed = folderOf.get(name)
    if (needed !== undefined && !own.has(needed)) {
      faults.push(`${folder}/tsconfig.src.json: add ${needed}, on which the package depends, to its references`)
    }
  }
  if (!path.basename(folder).startsWith("backend-")) continue
  const descriptors = manifest.tensorferry?.descriptors
  if (typeof descriptors !== "string" || !existsSync(path.join(root, folder, descriptors))) {
    faults.push(`${folder}/package.json: let tensorferry.descriptors name the file that exports its descriptors`)
  } else if (!manifest.files.includes(path.posix.normalize(descriptors))) {
    faults.push(`${folder}/package.json: publish ${descriptors} (files)`)
  } else {
    const { descriptors: found } = await import(path.join(root, folder, descriptors))
    if (!Array.isArray(found) || found.length === 0) faults.push(`${folder}/${descriptors}: exports no descriptors`)
  }
}
if (faults.length > 0) {
  console.error(faults.join("\n"))
  process.exitCode = 1
} else console.log(`packages: ${folders.length}, each compiled with what it depends on`)
