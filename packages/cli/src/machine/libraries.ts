// SPDX-License-Identifier: Apache-2.0
/**
 * Shared libraries that backends' probes looked for: which were found, in which version, and where the others were sought.
 */
import * as path from "node:path"
import type { SystemFiles } from "./SystemFiles.ts"

export interface LibraryFinding {
  readonly library: string
  readonly backends: ReadonlyArray<string>
  /** The first place that has it. */
  readonly found: string | undefined
  /** From the name of the file that it really is. */
  readonly version: string | undefined
  readonly tried: ReadonlyArray<string>
}

export interface ProbedLibraries {
  readonly name: string
  readonly tried: ReadonlyArray<string>
}

export const libraryVersion = (file: string): string | undefined =>
  /\.so\.(\d+(?:\.\d+)*)$/.exec(path.basename(file))?.[1]

/** One finding per library, in the order of the probes; what a probe tried beside libraries is left out. */
export const findLibraries = (
  files: SystemFiles,
  probes: ReadonlyArray<ProbedLibraries>
): ReadonlyArray<LibraryFinding> => {
  const tried = new Map<string, { readonly backends: Set<string>; readonly paths: Set<string> }>()
  for (const probe of probes) {
    for (const file of probe.tried) {
      const library = path.basename(file)
      if (!path.isAbsolute(file) || !/\.so(\.|$)/.test(library)) continue
      const entry = tried.get(library) ?? { backends: new Set(), paths: new Set() }
      entry.backends.add(probe.name)
      entry.paths.add(file)
      tried.set(library, entry)
    }
  }
  return [...tried].map(([library, { backends, paths }]) => {
    const found = [...paths].find((file) => files.realPath(file) !== undefined)
    return {
      library,
      backends: [...backends],
      found,
      version: found === undefined ? undefined : libraryVersion(files.realPath(found) ?? found),
      tried: [...paths]
    }
  })
}

/** The folders in which libraries were looked for, in order. */
export const searchedFolders = (libraries: ReadonlyArray<LibraryFinding>): ReadonlyArray<string> => [
  ...new Set(libraries.flatMap(({ tried }) => tried.map((file) => path.dirname(file))))
]
