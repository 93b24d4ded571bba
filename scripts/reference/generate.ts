// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the reference of the published packages from docstrings, as Markdown pages: a folder per package, in it one per
 * module that `exports` names, with the header of a file behind the words of its subject. Pages of types that are
 * made from a schema show the schema, whose fields have the words.
 *
 * Usage: node generate.ts [FOLDER]
 * Exits with 1 and a list where a public name has neither.
 */
import { readFileSync } from "node:fs"
import * as path from "node:path"
import { Application, Comment, type Context, Converter, type DeclarationReflection, ReflectionKind } from "typedoc"
import ts from "typescript"
import { readTree } from "../house/tree.ts"

const root = path.resolve(import.meta.dirname, "../..")
const folder = path.resolve(process.argv[2] ?? path.join(root, "docs/reference"))

/** The module behind each door of the published packages, by the name it is imported by. */
const doors = new Map(
  readTree(root).packages.flatMap((each) => {
    const manifest = JSON.parse(readFileSync(path.join(root, each.folder, "package.json"), "utf8"))
    const entries = Object.entries((manifest.exports ?? {}) as Record<string, unknown>)
    if (manifest.private === true) return []
    return entries.flatMap(([key, file]) =>
      typeof file === "string" && file.endsWith(".ts")
        ? [[path.join(root, each.folder, file), path.posix.join(path.basename(each.folder), key)] as const]
        : []
    )
  })
)

const app = await Application.bootstrapWithPlugins({
  entryPoints: [...doors.keys()],
  tsconfig: path.join(root, "tsconfig.lint.json"),
  basePath: root,
  plugin: ["typedoc-plugin-markdown"],
  outputs: [{ name: "markdown", path: folder }],
  readme: "none",
  name: "tensorferry",
  // What classes inherit from effect is effect's to document.
  excludeExternals: true,
  disableSources: true,
  hideGenerator: true,
  validation: false,
  // The repository's own compiler does that.
  skipErrorChecking: true
})

// Types of parameters and results as they were written: the compiler forgets the names of types that come from schemas.
const convertType = app.converter.convertType.bind(app.converter)
app.converter.convertType = (context: Context, typeOrNode: ts.Type | ts.TypeNode | undefined, written?: ts.TypeNode) =>
  convertType(context, (written ?? typeOrNode) as ts.TypeNode | undefined)

const fileOf = (reflection: DeclarationReflection): string | undefined =>
  reflection.project.getSymbolIdFromReflection(reflection)?.fileName

/** The first block of a file, which says what it owns. The licence stands above it. */
const headerOf = (file: string): string | undefined =>
  /^(?:#!.*\n|\/\/.*\n)*\/\*\*([\s\S]*?)\*\//
    .exec(readFileSync(file, "utf8"))?.[1]
    ?.split("\n")
    .map((line) => line.replace(/^\s*\* ?/, ""))
    .join("\n")
    .trim()

const scopes = ReflectionKind.Module | ReflectionKind.Namespace

const kinds =
  scopes |
  ReflectionKind.Class |
  ReflectionKind.Interface |
  ReflectionKind.Function |
  ReflectionKind.Variable |
  ReflectionKind.TypeAlias

const isDocumented = (reflection: DeclarationReflection): boolean =>
  reflection.hasComment() || (reflection.signatures?.some((signature) => signature.hasComment()) ?? false)

/** All that the entry points make public. A value and a type of one name are one thing: what is said of one holds for both. */
const publicNames = (parent: {
  readonly children?: ReadonlyArray<DeclarationReflection>
}): ReadonlyArray<DeclarationReflection> =>
  (parent.children ?? []).flatMap((child) => [
    ...(child.kindOf(kinds) ? [child] : []),
    ...(child.kindOf(scopes) ? publicNames(child) : [])
  ])

/** The schema that a name is, as its source has it, where its fields are more than a line. */
const schemaOf = (context: Context, reflection: DeclarationReflection): string | undefined => {
  const symbol = context.getSymbolFromReflection(reflection)
  const declaration = symbol?.declarations?.find(ts.isVariableDeclaration)
  const text = declaration?.parent.getText()
  return text !== undefined && /^const \w+ = Schema\.[\s\S]*\n/.test(text) ? text : undefined
}

app.converter.on(Converter.EVENT_CREATE_DECLARATION, (_context, reflection) => {
  const door = reflection.kindOf(ReflectionKind.Module) ? doors.get(fileOf(reflection) ?? "") : undefined
  if (door !== undefined) reflection.name = door
})

app.converter.on(Converter.EVENT_RESOLVE_END, (context) => {
  const names = publicNames(context.project)
  for (const reflection of names) {
    const file = fileOf(reflection)
    if (file === undefined) continue
    const isSubject =
      reflection.kindOf(scopes) || reflection.name.toLowerCase() === path.basename(file, ".ts").toLowerCase()
    const header = isSubject ? headerOf(file) : undefined
    if (header === undefined) continue
    if (!isDocumented(reflection)) reflection.comment = new Comment([{ kind: "text", text: header }])
    // A name has words of its own for editors; behind them stands the contract, which is that of its file.
    else if (!reflection.kindOf(scopes)) reflection.comment?.summary.push({ kind: "text", text: `\n\n${header}` })
  }
  for (const reflection of names) {
    const schema = schemaOf(context, reflection)
    if (schema === undefined) continue
    reflection.comment ??= new Comment()
    reflection.comment.summary.push({ kind: "code", text: `\n\n\`\`\`ts\n${schema}\n\`\`\`` })
  }
})

const project = await app.convert()
if (project === undefined) process.exit(1)
const names = publicNames(project)
const documented = new Set(names.filter(isDocumented).map((reflection) => reflection.getFullName()))
const undocumented = names.filter((reflection) => !documented.has(reflection.getFullName()))
await app.generateOutputs(project)
console.log(`${doors.size} modules, ${names.length} names, ${undocumented.length} without documentation`)
for (const reflection of undocumented) {
  console.error(`${path.relative(root, fileOf(reflection) ?? "")}: ${reflection.getFullName()} has no documentation`)
}
if (undocumented.length > 0 || app.logger.hasErrors()) process.exitCode = 1
