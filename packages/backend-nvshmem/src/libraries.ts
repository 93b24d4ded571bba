// SPDX-License-Identifier: Apache-2.0
/**
 * Where NVSHMEM's host library is looked for: the option, the environment variable, what the loader finds by itself, the
 * wheels of Python installations, the toolkit's folder. An explicit choice is the only one tried.
 */
import { statSync } from "node:fs"
import * as path from "node:path"
import { type Environment, searchFolders } from "@tensorferry/gpu/libraries"
import { findLibrary } from "@tensorferry/native/LibrarySearch"

export const libraryVariable = "TENSORFERRY_NVSHMEM"

const fileNames = ["libnvshmem_host.so.3", "libnvshmem_host.so"]

const places = {
  wheels: ["nvidia/nvshmem/lib"],
  folders: ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu/nvshmem/13", "/usr/lib/x86_64-linux-gnu/nvshmem/12"]
}

const isFile = (file: string): boolean => statSync(file, { throwIfNoEntry: false })?.isFile() ?? false

/** Names and paths to try, in order. */
export const libraryNames = (
  choice?: string | ReadonlyArray<string>,
  environment: Environment = process.env,
  system?: ReadonlyArray<string>
): ReadonlyArray<string> => {
  if (choice !== undefined) return typeof choice === "string" ? [choice] : choice
  const named = environment[libraryVariable]
  if (named !== undefined && named !== "") return [named]
  const found = searchFolders(places, environment, system)
    .flatMap((folder) => fileNames.map((name) => path.join(folder, name)))
    .filter(isFile)
  return [...fileNames, ...found]
}

/** Every path that was looked at. */
export const searchedPaths = (names: ReadonlyArray<string>): ReadonlyArray<string> => {
  const plain = names.filter((name) => !name.includes("/"))
  return [
    ...names.filter((name) => name.includes("/")),
    ...(plain.length === 0 ? [] : findLibrary(plain, places.folders).tried)
  ]
}
