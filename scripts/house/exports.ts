// SPDX-License-Identifier: Apache-2.0
/** What a package's `exports` let through, as Node resolves them, and the module that a specifier stands for. */
import * as path from "node:path"
import { ownerOf, type Package, type SourceFile, type Tree } from "./tree.ts"

export type Resolution =
  | { readonly kind: "module"; readonly path: string }
  | { readonly kind: "closed"; readonly why: string }
  | { readonly kind: "foreign" }

const isTable = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value)

/** The table from subpaths to targets, whichever of its short forms the manifest uses. */
const tableOf = (exports: unknown): Readonly<Record<string, unknown>> => {
  if (isTable(exports) && Object.keys(exports).some((key) => key.startsWith("."))) return exports
  return { ".": exports }
}

const targetOf = (entry: unknown): string | undefined => {
  if (typeof entry === "string") return entry
  if (!isTable(entry)) return undefined
  for (const condition of ["import", "node", "default", "types"]) {
    const target = targetOf(entry[condition])
    if (target !== undefined) return target
  }
  return undefined
}

/** The file below the package's folder, or undefined where the subpath is closed. */
const exported = (exports: unknown, subpath: string): string | undefined => {
  if (exports === undefined) return subpath
  const table = tableOf(exports)
  if (subpath in table && !subpath.includes("*")) return targetOf(table[subpath])
  const patterns = Object.keys(table).filter((key) => key.includes("*"))
  patterns.sort((left, right) => right.indexOf("*") - left.indexOf("*") || right.length - left.length)
  for (const pattern of patterns) {
    const [before, after] = pattern.split("*") as [string, string]
    if (subpath.length < pattern.length || !subpath.startsWith(before) || !subpath.endsWith(after)) continue
    return targetOf(table[pattern])?.replaceAll("*", subpath.slice(before.length, subpath.length - after.length))
  }
  return undefined
}

const scopeOf = (name: string): string => `${name.split("/")[0]}/`

export const resolve = (tree: Tree, from: SourceFile, specifier: string): Resolution => {
  if (specifier.startsWith(".")) {
    const target = path.posix.join(path.posix.dirname(from.path), specifier)
    const asSource = target.replace(/\.js$/, ".ts")
    return { kind: "module", path: tree.byPath.has(target) || !tree.byPath.has(asSource) ? target : asSource }
  }
  const owner = tree.packages.find((each) => specifier === each.name || specifier.startsWith(`${each.name}/`))
  if (owner === undefined) {
    const isOurs = tree.packages.some((each) => each.name.startsWith("@") && specifier.startsWith(scopeOf(each.name)))
    return isOurs ? { kind: "closed", why: "no such package" } : { kind: "foreign" }
  }
  const target = exported(owner.exports, `.${specifier.slice(owner.name.length)}`)
  if (target === undefined) return { kind: "closed", why: "not among its exports" }
  const file = path.posix.join(owner.folder, target)
  if (file.endsWith(".json") || tree.byPath.has(file)) return { kind: "module", path: file }
  return { kind: "closed", why: `no file ${file}` }
}

/** Every subpath under which a module can be imported. */
export const publicSubpaths = (tree: Tree, owner: Package): ReadonlyArray<string> => {
  const found = new Set<string>()
  const files = tree.files.filter((file) => file.area === owner.folder).map((file) => `./${file.within}`)
  const known = new Set(files)
  const add = (subpath: string): void => {
    const target = exported(owner.exports, subpath)
    if (target !== undefined && known.has(target)) found.add(subpath)
  }
  for (const [key, entry] of Object.entries(tableOf(owner.exports))) {
    if (!key.includes("*")) {
      add(key)
      continue
    }
    const [before, after] = (targetOf(entry) ?? "").split("*")
    if (before === undefined || after === undefined) continue
    for (const file of files)
      if (file.length >= before.length + after.length && file.startsWith(before) && file.endsWith(after))
        add(key.replace("*", file.slice(before.length, file.length - after.length)))
  }
  return [...found].sort()
}

/** Patterns that open the whole of a package's sources. */
export const openPatterns = (owner: Package): ReadonlyArray<string> =>
  Object.entries(tableOf(owner.exports)).flatMap(([key, entry]) => {
    const target = targetOf(entry)
    if (target === undefined) return []
    return key === "./*" || /^\.\/src\/\*(\.\w+)?$/.test(target) ? [key] : []
  })

/** The folder of the package or root folder that a path lies in. */
export const areaOf = (tree: Tree, file: string): string => ownerOf(tree, file)?.folder ?? file.split("/")[0]!
