// SPDX-License-Identifier: Apache-2.0
/**
 * Packs every public package into a tarball as it would be published: what was compiled just now, core's modules merged,
 * the command's help collected, this machine's addons prebuilt, versions instead of workspace references.
 *
 * Addons that are older than their sources are refused.
 *
 * Usage: node scripts/pack.ts FOLDER [PREBUILDS]
 * PREBUILDS is a folder with addons of other machines, as PACKAGE/prebuilds/linux-arm64/NAME.napi.glibc.node.
 */
import { spawnSync } from "node:child_process"
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs"
import * as path from "node:path"
import { staleBuilds } from "./pack/staleBuilds.ts"

const root = path.resolve(import.meta.dirname, "..")
const packagesFolder = path.join(root, "packages")

export interface Packed {
  readonly name: string
  readonly version: string
  /** The tarball. */
  readonly filename: string
  readonly files: ReadonlyArray<{ readonly path: string }>
}

const run = (command: string, args: ReadonlyArray<string>, cwd = root): string => {
  // Commands of the workspace, whatever started this script.
  const searched = `${path.join(root, "node_modules/.bin")}${path.delimiter}${process.env.PATH}`
  const { status, stdout, stderr, error } = spawnSync(command, args, {
    cwd,
    encoding: "utf8",
    maxBuffer: 2 ** 28,
    env: { ...process.env, PATH: searched }
  })
  if (status === 0) return stdout
  throw new Error(`${command} ${args.join(" ")} failed\n${stdout ?? ""}\n${stderr ?? ""}\n${error ?? ""}`)
}

/** pnpm in the version that the workspace pins. */
export const pnpm = (args: ReadonlyArray<string>, cwd: string): string => {
  const { packageManager } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8")) as {
    readonly packageManager: string
  }
  return run("npx", ["--yes", packageManager, ...args], cwd)
}

const isPublic = (name: string): boolean => {
  const { private: isPrivate } = JSON.parse(readFileSync(path.join(packagesFolder, name, "package.json"), "utf8")) as {
    readonly private?: boolean
  }
  return isPrivate !== true
}

const filesUnder = (folder: string): ReadonlyArray<string> =>
  existsSync(folder) ? readdirSync(folder, { recursive: true, encoding: "utf8" }) : []

/** The compiler never removes what it once made of a source file that is gone. */
const removeStale = (name: string): void => {
  const dist = path.join(packagesFolder, name, "dist")
  for (const file of filesUnder(dist)) {
    const source = /^(.*?)(\.d\.ts|\.js)(\.map)?$/.exec(file)?.[1]
    if (source === undefined || existsSync(path.join(packagesFolder, name, "src", `${source}.ts`))) continue
    rmSync(path.join(dist, file))
  }
}

/**
 * Copies the addon without its symbols to where node-gyp-build looks for prebuilt ones. "napi" is why one file serves all
 * versions of Node; "glibc" keeps other C libraries from trying it.
 */
const addPrebuilt = (name: string): void => {
  const release = path.join(packagesFolder, name, "build/Release")
  for (const file of filesUnder(release)) {
    if (!file.endsWith(".node")) continue
    const folder = path.join(packagesFolder, name, "prebuilds", `${process.platform}-${process.arch}`)
    mkdirSync(folder, { recursive: true })
    const prebuilt = path.join(folder, file.replace(/\.node$/, ".napi.glibc.node"))
    copyFileSync(path.join(release, file), prebuilt)
    run("strip", ["--strip-unneeded", prebuilt])
  }
}

export const packAll = (folder: string, otherPrebuilds?: string): ReadonlyArray<Packed> => {
  const names = readdirSync(packagesFolder).filter(isPublic)
  const stale = staleBuilds(packagesFolder, names)
  if (stale.length > 0) throw new Error(`${stale.join("\n")}\nBuild first: pnpm run build`)
  const projects = names
    .map((name) => path.join(packagesFolder, name, "tsconfig.src.json"))
    .filter((file) => existsSync(file))
  run("tsc", ["-b", ...projects])
  mkdirSync(folder, { recursive: true })
  // In the packages' folders only while they are packed: there, the addon in `build` is the one to use.
  const removePrebuilt = (): void => {
    for (const name of names) rmSync(path.join(packagesFolder, name, "prebuilds"), { recursive: true, force: true })
  }
  try {
    removePrebuilt()
    if (otherPrebuilds !== undefined) cpSync(otherPrebuilds, packagesFolder, { recursive: true })
    for (const name of names) {
      removeStale(name)
      addPrebuilt(name)
    }
    run(process.execPath, [path.join(root, "scripts/merge-core.ts")])
    run(process.execPath, [
      path.join(root, "packages/cli/scripts/help-pages.ts"),
      path.join(packagesFolder, "cli/dist/helpPages.json")
    ])
    const filters = names.flatMap((name) => ["--filter", `./packages/${name}`])
    const args = ["--recursive", "--no-sort", ...filters, "pack", "--json", "--pack-destination", folder]
    return JSON.parse(pnpm(args, root)) as ReadonlyArray<Packed>
  } finally {
    removePrebuilt()
  }
}

if (process.argv[1] === import.meta.filename) {
  const [folder, otherPrebuilds] = process.argv.slice(2)
  if (folder === undefined || folder.startsWith("-")) {
    console.error("usage: node scripts/pack.ts FOLDER [PREBUILDS]")
    process.exit(2)
  }
  for (const { filename, files } of packAll(path.resolve(folder), otherPrebuilds)) {
    console.log(`${filename}: ${files.length} files`)
  }
}
