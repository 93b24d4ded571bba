// SPDX-License-Identifier: Apache-2.0
/**
 * Native files that one package takes from another: headers it includes from outside of an `include` folder, and sources
 * and folders that its CMake files name. A package's root, its `include` and its `cmake` folders are for others.
 */
import * as path from "node:path"
import type { Place } from "./measure.ts"
import { ownerOf, type SourceFile, type Tree } from "./tree.ts"

const isPublic = (tree: Tree, file: string): boolean => {
  const owner = ownerOf(tree, file)
  if (owner === undefined || file === owner.folder) return true
  return /(^|\/)include(\/|$)|^cmake(\/|$)/.test(file.slice(owner.folder.length + 1))
}

const lineAt = (text: string, offset: number): number => text.slice(0, offset).split("\n").length

/** Headers by their last name. */
const headersOf = (tree: Tree): ReadonlyMap<string, ReadonlyArray<SourceFile>> =>
  Map.groupBy(
    tree.files.filter((file) => file.language === "native"),
    (file) => path.posix.basename(file.path)
  )

const includeFaults = (
  tree: Tree,
  headers: ReadonlyMap<string, ReadonlyArray<SourceFile>>,
  file: SourceFile
): ReadonlyArray<Place> => {
  const faults: Array<Place> = []
  for (const found of file.text.matchAll(/^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]/gm)) {
    const [, quote, name] = found as unknown as [string, string, string]
    const beside = path.posix.join(path.posix.dirname(file.path), name)
    const isBeside = quote === '"' && (tree.byPath.has(beside) || name.startsWith("../"))
    // A bare name in angle brackets is the system's.
    if (!isBeside && quote === "<" && !name.includes("/")) continue
    const all = headers.get(path.posix.basename(name)) ?? []
    const places = isBeside ? [beside] : all.map((each) => each.path).filter((each) => each.endsWith(`/${name}`))
    const isOwn = places.some((each) => each.startsWith(`${file.area}/`))
    if (places.length === 0 || isOwn || places.some((each) => isPublic(tree, each))) continue
    faults.push({ at: `${file.path}:${lineAt(file.text, found.index)}`, name: `includes ${places.join(" or ")}` })
  }
  return faults
}

interface Command {
  readonly name: string
  readonly words: ReadonlyArray<string>
  readonly line: number
}

const commandsOf = (file: SourceFile): ReadonlyArray<Command> => {
  const text = file.text.replace(/"(?:\\[\s\S]|[^"\\])*"|#[^\n]*/g, (found) => (found.startsWith("#") ? "" : found))
  const commands: Array<Command> = []
  const heads = /\b(\w+)[ \t]*\(/g
  for (let head = heads.exec(text); head !== null; head = heads.exec(text)) {
    let depth = 1
    let at = heads.lastIndex
    for (let isQuoted = false; at < text.length && depth > 0; at++) {
      if (text[at] === '"') isQuoted = !isQuoted
      else if (!isQuoted && text[at] === "(") depth++
      else if (!isQuoted && text[at] === ")") depth--
    }
    const words = text.slice(heads.lastIndex, at - 1).split(/[\s;"]+/)
    commands.push({ name: head[1]!.toLowerCase(), words: words.filter(Boolean), line: lineAt(text, head.index) })
    heads.lastIndex = at
  }
  return commands
}

type Variables = Map<string, string>

const expanded = (word: string, variables: ReadonlyMap<string, string>): string =>
  word.replace(/\$\{(\w+)\}/g, (whole, name: string) => variables.get(name) ?? whole)

/** A path from the root of the checkout; paths of variables begin with a slash there. */
const located = (folder: string, word: string): string =>
  word.startsWith("/") ? path.posix.normalize(word).slice(1) : path.posix.join(folder, word)

const builtIn = (file: SourceFile): Variables => {
  const folder = `/${path.posix.dirname(file.path)}`
  const here = ["CMAKE_CURRENT_SOURCE_DIR", "CMAKE_CURRENT_LIST_DIR", "CMAKE_CURRENT_FUNCTION_LIST_DIR"]
  const top = ["CMAKE_SOURCE_DIR", "PROJECT_SOURCE_DIR"]
  return new Map([
    ...here.map((name) => [name, folder] as const),
    ...top.map((name) => [name, `/${file.area}`] as const)
  ])
}

const assign = (variables: Variables, command: Command): void => {
  const [name, value] = command.words
  if (command.name === "set" && name !== undefined && value !== undefined)
    variables.set(name, expanded(value, variables))
}

/** What the CMake files before this one have set: those that any package may include, then the package's own. */
const inherited = (tree: Tree, file: SourceFile): Variables => {
  const variables: Variables = new Map()
  const isShared = (each: SourceFile): boolean => each.path.endsWith(".cmake")
  const isTop = (each: SourceFile): boolean => each.area === file.area && each.within === "CMakeLists.txt"
  const builds = tree.files.filter((each) => each.language === "build" && each !== file)
  for (const each of [...builds.filter(isShared), ...builds.filter(isTop)]) {
    const local = new Map([...variables, ...builtIn(each)])
    for (const command of commandsOf(each)) assign(local, command)
    for (const [name, value] of local) variables.set(name, value)
  }
  return variables
}

const asFolder = new Set(["add_subdirectory", "target_include_directories", "include_directories"])
const asName = new Set(["set", "set_source_files_properties", "message", "if", "elseif"])

const buildFaults = (tree: Tree, file: SourceFile): ReadonlyArray<Place> => {
  const variables = new Map([...inherited(tree, file), ...builtIn(file)])
  const faults = new Map<string, Place>()
  for (const command of commandsOf(file)) {
    assign(variables, command)
    if (asName.has(command.name)) continue
    for (const word of command.words) {
      const value = expanded(word, variables)
      if (value.includes("$")) continue
      const target = located(path.posix.dirname(file.path), value).replace(/\/$/, "")
      const owner = ownerOf(tree, target)
      if (owner === undefined || owner.folder === file.area || isPublic(tree, target)) continue
      if (!asFolder.has(command.name) && !/\.(cc|cpp|cxx|c|h|hpp|cu|cuh)$/.test(target)) continue
      const place = { at: `${file.path}:${command.line}`, name: `${command.name} of ${target}` }
      if (!faults.has(target)) faults.set(target, place)
    }
  }
  return [...faults.values()]
}

export const nativePrivacy = (tree: Tree): ReadonlyArray<Place> => {
  const headers = headersOf(tree)
  return tree.files.flatMap((file) => {
    if (!file.area.startsWith("packages/")) return []
    if (file.language === "native") return includeFaults(tree, headers, file)
    return file.language === "build" ? buildFaults(tree, file) : []
  })
}
