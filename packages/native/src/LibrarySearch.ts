// SPDX-License-Identifier: Apache-2.0
/**
 * Looks for shared libraries by file name, without opening them: for probes, which must say where they looked.
 */
import { statSync } from "node:fs"
import * as path from "node:path"

/** Where shared libraries were looked for, and what was found. */
export interface LibrarySearch {
  /** First match, if any. */
  readonly found: string | undefined
  /** Every path looked at, in order, up to the match. */
  readonly tried: ReadonlyArray<string>
}

/** Folders that the dynamic loader knows without configuration on the platforms we ship for. */
const systemFolders = [
  "/lib/x86_64-linux-gnu",
  "/usr/lib/x86_64-linux-gnu",
  "/lib/aarch64-linux-gnu",
  "/usr/lib/aarch64-linux-gnu",
  "/usr/local/lib",
  "/lib64",
  "/usr/lib64",
  "/usr/lib"
]

const isFile = (file: string): boolean => statSync(file, { throwIfNoEntry: false })?.isFile() ?? false

/** Tries each file name in LD_LIBRARY_PATH, `extraFolders` and the system's folders. */
export const findLibrary = (
  fileNames: ReadonlyArray<string>,
  extraFolders: ReadonlyArray<string> = [],
  libraryPath: string = process.env.LD_LIBRARY_PATH ?? ""
): LibrarySearch => {
  const folders = [...libraryPath.split(":").filter((folder) => folder !== ""), ...extraFolders, ...systemFolders]
  const tried: Array<string> = []
  for (const folder of folders) {
    for (const fileName of fileNames) {
      const file = path.join(folder, fileName)
      tried.push(file)
      if (isFile(file)) return { found: file, tried }
    }
  }
  return { found: undefined, tried }
}
