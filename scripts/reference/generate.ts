// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the reference of `@tensorferry/core` and its kit from docstrings, as Markdown pages: a page per namespace and name
 * of each entry point, with the header of its file where it has no words of its own. Pages of types that are made from a
 * schema show the schema, whose fields have the words.
 *
 * Usage: node generate.ts [FOLDER]
 * Exits with 1 and a list where a name of core's index has neither. Names of the kit without words are counted.
 */
import { readFileSync } from "node:fs"
import * as path from "node:path"
import { Application, Comment, type Context, Converter, type DeclarationReflection, ReflectionKind } from "typedoc"
import ts from "typescript"

const root = path.resolve(import.meta.dirname, "../..")
const core = path.join(root, "packages/core")
const folder = path.resolve(process.argv[2] ?? path.join(root, "docs/reference"))

/** What `exports` of the package names, and the folder of its pages. */
const entryPoints: ReadonlyArray<readonly [file: string, name: string]> = [
  ["index.ts", "core"],
  ["testing/index.ts", "testing"],
  ["testing/vitest.ts", "testing-vitest"]
]

const app = await Application.bootstrapWithPlugins({
  entryPoints: entryPoints.map(([file]) => path.join(core, "src", file)),
  tsconfig: path.join(core, "tsconfig.src.json"),
  basePath: core,
  plugin: ["typedoc-plugin-markdown"],
  outputs: [{ name: "markdown", path: folder }],
  readme: "none",
  name: "@tensorferry/core",
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

/** The first comment of a file, which says what it owns. */
const headerOf = (file: string): string | undefined =>
  /^\/\*\*([\s\S]*?)\*\//
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
  if (!reflection.kindOf(ReflectionKind.Module)) return
  const known = entryPoints.find(([file]) => fileOf(reflection) === path.join(core, "src", file))
  if (known !== undefined) reflection.name = known[1]
})

app.converter.on(Converter.EVENT_RESOLVE_END, (context) => {
  const names = publicNames(context.project)
  for (const reflection of names) {
    const file = fileOf(reflection)
    if (file === undefined || isDocumented(reflection)) continue
    const isSubject = reflection.kindOf(scopes) || reflection.name === path.basename(file).replace(/\.ts$/, "")
    const header = isSubject ? headerOf(file) : undefined
    if (header !== undefined) reflection.comment = new Comment([{ kind: "text", text: header }])
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
const bare = undocumented.filter((reflection) => /^core(\.|$)/.test(reflection.getFullName()))
await app.generateOutputs(project)
console.log(
  `${names.length} names, ${undocumented.length} without documentation, ${bare.length} of them of core's index`
)
for (const reflection of bare) {
  console.error(`${path.relative(core, fileOf(reflection) ?? "")}: ${reflection.getFullName()} has no documentation`)
}
if (bare.length > 0 || app.logger.hasErrors()) process.exitCode = 1
