// SPDX-License-Identifier: Apache-2.0
/** Imports of what another package keeps to itself, and how much each package keeps open. */
import { areaOf, openPatterns, publicSubpaths, resolve } from "./exports.ts"
import type { Measure, Place } from "./measure.ts"
import { nativePrivacy } from "./nativePrivacy.ts"
import { moduleOf } from "./syntax.ts"
import type { SourceFile, Tree } from "./tree.ts"

const faultsOf = (tree: Tree, file: SourceFile): ReadonlyArray<Place> =>
  moduleOf(file).imports.flatMap(({ specifier, line }) => {
    const at = `${file.path}:${line}`
    const resolution = resolve(tree, file, specifier)
    const isPackage = (area: string): boolean => area.startsWith("packages/")
    if (resolution.kind === "closed") {
      const isOwn = tree.packages.some((each) => each.folder === file.area && specifier.startsWith(`${each.name}/`))
      return isOwn ? [] : [{ at, name: `${specifier}: ${resolution.why}` }]
    }
    if (resolution.kind === "foreign" || !specifier.startsWith(".")) return []
    const area = areaOf(tree, resolution.path)
    return area !== file.area && (isPackage(area) || isPackage(file.area))
      ? [{ at, name: `${specifier}: leaves its own package` }]
      : []
  })

export const privacy = (tree: Tree): ReadonlyArray<Measure> => {
  const offenders = tree.files.filter((file) => file.language === "ts").flatMap((file) => faultsOf(tree, file))
  const native = nativePrivacy(tree)
  const open = tree.packages.flatMap((each) =>
    openPatterns(each).map((pattern) => ({ at: `${each.folder}/package.json`, name: pattern }))
  )
  const shown = tree.packages.map((each) => ({
    at: each.folder,
    name: "public modules",
    figure: publicSubpaths(tree, each).length
  }))
  return [
    {
      key: "private-imports",
      title: "imports of another package's private module",
      figure: offenders.length,
      limit: 0,
      offenders
    },
    {
      key: "private-native",
      title: "uses of another package's private native file",
      figure: native.length,
      limit: 0,
      offenders: native
    },
    {
      key: "open-patterns",
      title: "export patterns that open a whole src",
      figure: open.length,
      limit: 0,
      offenders: open
    },
    {
      key: "public-modules",
      title: "public module specifiers",
      figure: shown.reduce((sum, each) => sum + each.figure, 0),
      others: shown
    }
  ]
}
