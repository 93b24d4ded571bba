// SPDX-License-Identifier: Apache-2.0
/** How long packages, folders and files are, how much of core is a kit for tests, and what tests there are. */
import * as path from "node:path"
import { byFigure, type Measure, type Place } from "./measure.ts"
import { moduleOf } from "./syntax.ts"
import { type SourceFile, sourcesOf, type Tree } from "./tree.ts"

const core = "packages/core"
const total = (files: ReadonlyArray<SourceFile>): number => files.reduce((sum, file) => sum + file.lines, 0)

export interface AreaLines {
  readonly area: string
  readonly ts: number
  readonly native: number
  readonly test: number
  readonly other: number
}

export const areaLines = (tree: Tree): ReadonlyArray<AreaLines> =>
  [...new Set(tree.files.map((file) => file.area))].sort().map((area) => {
    const files = tree.files.filter((file) => file.area === area)
    const code = files.filter((file) => file.language !== "build")
    const sources = code.filter((file) => file.kind === "source")
    return {
      area,
      ts: total(sources.filter((file) => file.language === "ts")),
      native: total(sources.filter((file) => file.language === "native")),
      test: total(code.filter((file) => file.kind === "test")),
      other: total(code.filter((file) => file.kind === "other"))
    }
  })

const coreLines = (tree: Tree): Measure => {
  const files = tree.files.filter((file) => file.area === core && file.within.startsWith("src/"))
  const figure = total(files.filter((file) => file.language === "ts"))
  const limit = 23_000
  const offenders = figure > limit ? [{ at: `${core}/src`, name: "lines of TypeScript", figure }] : []
  return { key: "core-lines", title: "lines of packages/core/src", figure, limit, offenders }
}

const folders = (tree: Tree): Measure => {
  const limit = 27
  const counts = new Map<string, number>()
  for (const file of sourcesOf(tree)) {
    const folder = path.posix.dirname(file.path)
    counts.set(folder, (counts.get(folder) ?? 0) + 1)
  }
  const places = [...counts].map(([at, figure]): Place => ({ at, name: "files", figure })).sort(byFigure)
  const offenders = places.filter((place) => place.figure! > limit)
  const figure = places[0]?.figure ?? 0
  const others = places.slice(offenders.length, 5)
  return { key: "folder-files", title: "source files in the largest folder", figure, limit, offenders, others }
}

const longFiles = (tree: Tree): Measure => {
  const offenders = sourcesOf(tree)
    .filter((file) => file.lines > 450)
    .map((file): Place => ({ at: `${file.path}:1`, name: "lines", figure: file.lines }))
    .sort(byFigure)
  return { key: "long-files", title: "source files above 450 lines", figure: offenders.length, limit: 0, offenders }
}

const forTests = /^(vitest|fast-check|@fast-check\/.*|@effect\/vitest|effect\/(.*\/)?(Arbitrary|FastCheck))(\/.*)?$/

const kit = (tree: Tree): Measure => {
  const offenders: Array<Place> = []
  for (const file of tree.files) {
    if (file.area !== core || file.kind !== "source" || file.language !== "ts") continue
    const imported = moduleOf(file).imports.find((each) => forTests.test(each.specifier))
    if (file.within.startsWith("src/testing/"))
      offenders.push({ at: `${file.path}:1`, name: "in src/testing", figure: file.lines })
    else if (imported !== undefined)
      offenders.push({ at: `${file.path}:${imported.line}`, name: `imports ${imported.specifier}`, figure: file.lines })
  }
  const figure = offenders.reduce((sum, place) => sum + place.figure!, 0)
  return { key: "core-kit", title: "lines of the test kit in core's sources", figure, limit: 0, offenders }
}

const mirrors = (tree: Tree, file: SourceFile): boolean => {
  const name = file.within.replace(/^test\//, "").replace(/(\.(full|soak))?\.test\.[cm]?ts$/, "")
  const folder = path.posix.dirname(name)
  const isFolder = (each: string): boolean =>
    tree.files.some((other) => other.area === file.area && other.within.startsWith(`src/${each}/`))
  return (folder !== "." && isFolder(folder)) || isFolder(name) || tree.byPath.has(`${file.area}/src/${name}.ts`)
}

const tests = (tree: Tree): ReadonlyArray<Measure> => {
  const all = tree.files.filter((file) => /\.test\.[cm]?ts$/.test(file.path))
  const full = all.filter((file) => /\.full\.test\./.test(file.path)).length
  const soak = all.filter((file) => /\.soak\.test\./.test(file.path)).length
  const astray = all.filter(
    (file) => file.area.startsWith("packages/") && file.within.startsWith("test/") && !mirrors(tree, file)
  )
  return [
    { key: "tests", title: "test files *.test.ts of the usual run", figure: all.length - full - soak },
    { key: "tests-full", title: "test files *.full.test.ts", figure: full },
    { key: "tests-soak", title: "test files *.soak.test.ts", figure: soak },
    {
      key: "tests-astray",
      title: "test files that mirror nothing of src",
      figure: astray.length,
      others: astray.map((file) => ({ at: file.path, name: "mirrors nothing" })),
      isUnlisted: true
    }
  ]
}

export const sizes = (tree: Tree): ReadonlyArray<Measure> => [coreLines(tree), folders(tree), longFiles(tree)]
export const kitAndTests = (tree: Tree): ReadonlyArray<Measure> => [kit(tree), ...tests(tree)]
