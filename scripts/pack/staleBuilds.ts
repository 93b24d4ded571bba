// SPDX-License-Identifier: Apache-2.0
/**
 * Addons that are not what their sources say now: packed, they would be published beside sources of another day. A build is
 * stale where a source of the package, or a header that addons share, was written after it. A build that had nothing to do
 * counts too: it touches `build/built`.
 */
import { existsSync, readdirSync, statSync } from "node:fs"
import * as path from "node:path"

/** Where headers and sources lie that addons of several packages compile. */
const shared = ["native/include", "gpu/native"]

const filesUnder = (folder: string): ReadonlyArray<string> =>
  existsSync(folder)
    ? readdirSync(folder, { recursive: true, encoding: "utf8", withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => path.join(entry.parentPath, entry.name))
    : []

const newest = (files: ReadonlyArray<string>): readonly [file: string, millis: number] => {
  let found: readonly [string, number] = ["", 0]
  for (const file of files) {
    const { mtimeMs } = statSync(file)
    if (mtimeMs > found[1]) found = [file, mtimeMs]
  }
  return found
}

/** What is wrong with each package's build, in a line; none where all are as their sources. */
export const staleBuilds = (packagesFolder: string, names: ReadonlyArray<string>): ReadonlyArray<string> =>
  names.flatMap((name) => {
    const folder = path.join(packagesFolder, name)
    if (!existsSync(path.join(folder, "CMakeLists.txt"))) return []
    const addons = filesUnder(path.join(folder, "build/Release")).filter((file) => file.endsWith(".node"))
    if (addons.length === 0) return [`packages/${name} is not built`]
    const sources = [
      path.join(folder, "CMakeLists.txt"),
      ...filesUnder(path.join(folder, "native")),
      ...shared.flatMap((place) => filesUnder(path.join(packagesFolder, place)))
    ]
    const [source, written] = newest(sources)
    const stamp = path.join(folder, "build/built")
    const built = existsSync(stamp) ? [stamp] : addons
    return written <= Math.min(...built.map((file) => statSync(file).mtimeMs))
      ? []
      : [`the build of packages/${name} is older than packages/${path.relative(packagesFolder, source)}`]
  })
