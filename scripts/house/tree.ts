// SPDX-License-Identifier: Apache-2.0
/**
 * The files of a checkout, which package each belongs to, and whether it is a source or a test. What git ignores is not
 * there, so generated files stand aside only where they are not kept.
 */
import { execFileSync } from "node:child_process"
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs"
import * as path from "node:path"

/** `ts` is TypeScript, `native` is C++ or CUDA, `script` is JavaScript and `build` is CMake. */
export type Language = "ts" | "native" | "script" | "build"

export interface SourceFile {
  /** From the root, with forward slashes. */
  readonly path: string
  /** The package's folder, or the root folder where the file is of no package. */
  readonly area: string
  /** From the area's folder. */
  readonly within: string
  readonly kind: "source" | "test" | "other"
  readonly language: Language
  readonly text: string
  readonly lines: number
}

export interface Package {
  readonly folder: string
  readonly name: string
  readonly exports: unknown
}

export interface Tree {
  readonly root: string
  readonly packages: ReadonlyArray<Package>
  readonly files: ReadonlyArray<SourceFile>
  readonly byPath: ReadonlyMap<string, SourceFile>
}

/** Folders beside the packages whose code is measured too. */
const besides = ["golden", "bench", "scripts", "examples"]
const passedOver = new Set(["node_modules", "dist", "build", "prebuilds", ".git", ".cache"])

const languageOf = (file: string): Language | undefined => {
  if (/\.[cm]?ts$/.test(file)) return "ts"
  if (/\.(cc|cpp|cxx|c|h|hpp|cu|cuh)$/.test(file)) return "native"
  if (/\.[cm]?js$/.test(file)) return "script"
  return /(^|\/)CMakeLists\.txt$|\.cmake$/.test(file) ? "build" : undefined
}

const walk = (root: string, folder: string): ReadonlyArray<string> =>
  readdirSync(path.join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const file = folder === "" ? entry.name : `${folder}/${entry.name}`
    if (entry.isDirectory()) return passedOver.has(entry.name) ? [] : walk(root, file)
    return entry.isFile() ? [file] : []
  })

const listed = (root: string): ReadonlyArray<string> => {
  try {
    const names = execFileSync("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"], {
      cwd: root,
      encoding: "utf8",
      maxBuffer: 1 << 28,
      stdio: ["ignore", "pipe", "ignore"]
    })
    const files = names.split("\0").filter((name) => name !== "")
    if (files.length > 0) return [...new Set(files)]
  } catch {
    // Not a checkout: every file counts.
  }
  return walk(root, "")
}

const packagesOf = (root: string): ReadonlyArray<Package> => {
  const parent = path.join(root, "packages")
  const names = existsSync(parent) ? readdirSync(parent).sort() : []
  return [...names.map((name) => `packages/${name}`), "golden"].flatMap((folder) => {
    const manifest = path.join(root, folder, "package.json")
    if (!existsSync(manifest)) return []
    const content: { readonly name?: string; readonly exports?: unknown } = JSON.parse(readFileSync(manifest, "utf8"))
    return [{ folder, name: content.name ?? folder, exports: content.exports }]
  })
}

const isTest = (within: string): boolean => /(^|\/)tests?\//.test(within) || /\.test\.[cm]?ts$/.test(within)

const isSource = (area: string, within: string): boolean =>
  /^(src|native|include)\//.test(within) || /(^|\/)simulators?\//.test(`${path.posix.basename(area)}/${within}`)

const kindOf = (area: string, within: string): SourceFile["kind"] => {
  if (isTest(within)) return "test"
  return area.startsWith("packages/") && isSource(area, within) ? "source" : "other"
}

/** Without the licence line, which every file has. */
const linesOf = (text: string): number => {
  let count = text === "" || text.endsWith("\n") ? 0 : 1
  if (/^(#!.*\n)?(\/\/|#|\/\*) SPDX-License-Identifier/.test(text)) count -= 1
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count++
  return count
}

export const readTree = (root: string): Tree => {
  const packages = packagesOf(root)
  const areas = [...new Set([...packages.map((each) => each.folder), ...besides])]
  const files: Array<SourceFile> = []
  for (const file of [...listed(root)].sort()) {
    const language = languageOf(file)
    const area = areas.find((each) => file.startsWith(`${each}/`))
    if (language === undefined || area === undefined) continue
    const full = path.join(root, file)
    if (!(statSync(full, { throwIfNoEntry: false })?.isFile() ?? false)) continue
    const text = readFileSync(full, "utf8")
    const within = file.slice(area.length + 1)
    files.push({ path: file, area, within, kind: kindOf(area, within), language, text, lines: linesOf(text) })
  }
  return { root, packages, files, byPath: new Map(files.map((file) => [file.path, file])) }
}

/** TypeScript and native code that packages are made of. */
export const sourcesOf = (tree: Tree): ReadonlyArray<SourceFile> =>
  tree.files.filter((file) => file.kind === "source" && (file.language === "ts" || file.language === "native"))

/** The package that a path from the root lies in. */
export const ownerOf = (tree: Tree, file: string): Package | undefined =>
  tree.packages.find((each) => file === each.folder || file.startsWith(`${each.folder}/`))
