// SPDX-License-Identifier: Apache-2.0
/**
 * What an editor shows of the published declarations, asked of TypeScript's language service: exports and members of shapes
 * that have no words there, types that became `any`, and lists of element types that lost their name.
 *
 * A shape is an interface with something to call or to run. Needs the declarations in `dist` (node scripts/types.ts).
 */
import { existsSync, readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "../..")
/** The compiler of the workspace has no service in JavaScript; that of the reference has. */
const typescript = path.join(root, "scripts/reference/node_modules/typescript/lib/typescript.js")

interface Text {
  readonly text: string
}
interface Node {
  readonly kind: number
  readonly members?: ReadonlyArray<Node>
  readonly name?: Node
  readonly type?: Node
  readonly getText: () => string
  readonly getSourceFile: () => { readonly fileName: string }
}
interface Named {
  readonly name: string
  readonly flags: number
  readonly declarations?: ReadonlyArray<Node>
  readonly getDocumentationComment: (checker: Checker) => ReadonlyArray<Text>
}
interface Checker {
  readonly getSymbolAtLocation: (node: unknown) => Named | undefined
  readonly getExportsOfModule: (module: Named) => ReadonlyArray<Named>
  readonly getAliasedSymbol: (symbol: Named) => Named
}
interface Program {
  readonly getTypeChecker: () => Checker
  readonly getSourceFile: (file: string) => Node | undefined
}

export interface Hover {
  /** Exports that were asked for. */
  readonly asked: number
  readonly withoutWords: ReadonlyArray<string>
  readonly any: ReadonlyArray<string>
  /** Places where the list of element types stands instead of its name. */
  readonly unnamed: ReadonlyArray<string>
}

/** The declarations that published packages open, by what is imported. */
const publishedDoors = (): ReadonlyMap<string, string> => {
  const doors = new Map<string, string>()
  for (const folder of readdirSync(path.join(root, "packages"))) {
    const file = path.join(root, "packages", folder, "package.json")
    if (!existsSync(file)) continue
    const { name, private: isPrivate, publishConfig } = JSON.parse(readFileSync(file, "utf8"))
    if (isPrivate === true) continue
    for (const [key, entry] of Object.entries<{ readonly types?: string }>(publishConfig?.exports ?? {}))
      if (entry.types !== undefined)
        doors.set(path.posix.join(name, key), path.join(root, "packages", folder, entry.types))
  }
  return doors
}

const programOf = async (doors: ReadonlyMap<string, string>) => {
  const ts = (await import(typescript)).default
  const options = {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    target: ts.ScriptTarget.ES2024,
    allowImportingTsExtensions: true,
    noEmit: true,
    skipLibCheck: true,
    strict: true,
    types: ["node"]
  }
  const files = [...doors.values()]
  const resolve = (name: string, from: string) => {
    const beside = path.resolve(path.dirname(from), name.replace(/\.(ts|js)$/, ".d.ts"))
    const own = doors.get(name) ?? (name.startsWith(".") && existsSync(beside) ? beside : undefined)
    return own === undefined
      ? ts.resolveModuleName(name, from, options, ts.sys, undefined, undefined, ts.ModuleKind.ESNext)
      : { resolvedModule: { resolvedFileName: own, extension: ".d.ts" } }
  }
  const service = ts.createLanguageService({
    getScriptFileNames: () => files,
    getScriptVersion: () => "1",
    getScriptSnapshot: (file: string) =>
      existsSync(file) ? ts.ScriptSnapshot.fromString(readFileSync(file, "utf8")) : undefined,
    getCurrentDirectory: () => root,
    getCompilationSettings: () => options,
    getDefaultLibFileName: ts.getDefaultLibFilePath,
    fileExists: ts.sys.fileExists,
    readFile: ts.sys.readFile,
    directoryExists: ts.sys.directoryExists,
    getDirectories: ts.sys.getDirectories,
    realpath: ts.sys.realpath,
    resolveModuleNameLiterals: (names: ReadonlyArray<Text>, from: string) =>
      names.map(({ text }) => resolve(text, from))
  })
  return { ts, program: service.getProgram() as Program }
}

/** Something to call or to run. */
const isAction = (member: Node): boolean => /^Effect\.Effect|=>|^Stream\./.test(member.type?.getText() ?? "")

export const hoverFaults = async (): Promise<Hover> => {
  const doors = publishedDoors()
  const { program, ts } = await programOf(doors)
  const checker = program.getTypeChecker()
  const hasWords = (symbol: Named | undefined): boolean =>
    symbol === undefined || symbol.getDocumentationComment(checker).some(({ text }) => text.trim() !== "")
  const isAny = (node: Node): boolean => {
    let found = node.kind === ts.SyntaxKind.AnyKeyword
    ts.forEachChild(node, (child: Node) => {
      found ||= isAny(child)
    })
    return found
  }
  const [withoutWords, any, unnamed]: [Array<string>, Array<string>, Array<string>] = [[], [], []]
  const seen = new Set<Named>()
  for (const [door, file] of doors) {
    const source = program.getSourceFile(file)
    if (source === undefined) throw new Error(`${file} is not there; run node scripts/types.ts`)
    const module = checker.getSymbolAtLocation(source)
    for (const exported of module === undefined ? [] : checker.getExportsOfModule(module)) {
      const symbol = exported.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported
      if (seen.has(symbol)) continue
      seen.add(symbol)
      const at = `${door} ${exported.name}`
      if (!hasWords(exported) && !hasWords(symbol)) withoutWords.push(at)
      const own = (symbol.declarations ?? []).filter((one) =>
        /packages\/[^/]+\/dist\//.test(one.getSourceFile().fileName)
      )
      for (const declaration of own) {
        if (declaration.kind === ts.SyntaxKind.SourceFile) continue
        if (isAny(declaration)) any.push(at)
        // A type that only the whole list has. Left out: the list itself, and flags of the command, which no editor completes.
        if (
          exported.name !== "DType" &&
          !door.startsWith("@tensorferry/cli") &&
          /"float6_e2m3fn" \|/.test(declaration.getText())
        )
          unnamed.push(at)
        const { kind, members = [] } = declaration
        if (kind !== ts.SyntaxKind.InterfaceDeclaration || !members.some(isAction)) continue
        for (const { name } of members)
          if (name !== undefined && !hasWords(checker.getSymbolAtLocation(name)))
            withoutWords.push(`${at}.${name.getText()}`)
      }
    }
  }
  return { asked: seen.size, withoutWords, any, unnamed }
}
