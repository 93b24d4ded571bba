/**
 * Writes the reference of `@tensorferry/core` from its docstrings, as Markdown pages: a page per namespace and name of the
 * index, with the header of its file where it has no words of its own.
 *
 * Usage: node generate.ts [FOLDER]
 * Exits with 1 and a list where a name has neither.
 */
import { readFileSync } from "node:fs"
import * as path from "node:path"
import { Application, Comment, Converter, type DeclarationReflection, ReflectionKind } from "typedoc"

const root = path.resolve(import.meta.dirname, "../..")
const core = path.join(root, "packages/core")
const folder = path.resolve(process.argv[2] ?? path.join(root, "docs/reference"))

const app = await Application.bootstrapWithPlugins({
  entryPoints: [path.join(core, "src/index.ts")],
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

const kinds =
  ReflectionKind.Namespace |
  ReflectionKind.Class |
  ReflectionKind.Interface |
  ReflectionKind.Function |
  ReflectionKind.Variable |
  ReflectionKind.TypeAlias

const isDocumented = (reflection: DeclarationReflection): boolean =>
  reflection.hasComment() || (reflection.signatures?.some((signature) => signature.hasComment()) ?? false)

/** All that the index makes public. A value and a type of one name are one thing: what is said of one holds for both. */
const publicNames = (parent: {
  readonly children?: ReadonlyArray<DeclarationReflection>
}): ReadonlyArray<DeclarationReflection> =>
  (parent.children ?? []).flatMap((child) => [
    ...(child.kindOf(kinds) ? [child] : []),
    ...(child.kindOf(ReflectionKind.Namespace) ? publicNames(child) : [])
  ])

app.converter.on(Converter.EVENT_RESOLVE_END, ({ project }) => {
  for (const reflection of publicNames(project)) {
    const file = fileOf(reflection)
    if (file === undefined || isDocumented(reflection)) continue
    const isSubject =
      reflection.kindOf(ReflectionKind.Namespace) || reflection.name === path.basename(file).replace(/\.ts$/, "")
    const header = isSubject ? headerOf(file) : undefined
    if (header !== undefined) reflection.comment = new Comment([{ kind: "text", text: header }])
  }
})

const project = await app.convert()
if (project === undefined) process.exit(1)
const names = publicNames(project)
const documented = new Set(names.filter(isDocumented).map((reflection) => reflection.getFullName()))
const bare = names.filter((reflection) => !documented.has(reflection.getFullName()))
await app.generateOutputs(project)
console.log(`${names.length} names, ${bare.length} without documentation`)
for (const reflection of bare) {
  console.error(`${path.relative(core, fileOf(reflection) ?? "")}: ${reflection.getFullName()} has no documentation`)
}
if (bare.length > 0 || app.logger.hasErrors()) process.exitCode = 1
