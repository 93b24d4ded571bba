// SPDX-License-Identifier: Apache-2.0
/**
 * Where the vendor's libraries are looked for: the option, the environment variable, what the loader finds by itself, the
 * wheels of Python installations, the vendor's own folder. An explicit choice is the only one tried.
 *
 * Invariant: nothing is opened and no program is run here; names below folders are listed only where the file exists, so
 * that what was tried stays readable.
 */
import { readdirSync, realpathSync, statSync } from "node:fs"
import * as path from "node:path"
import { findLibrary } from "@tensorferry/native/LibrarySearch"
import * as Result from "effect/Result"
import type { LibraryNames, Vendor } from "./Addon.ts"

const libraryKinds = ["runtime", "driver", "compiler", "collectives"] as const
/** What a library is for: to run work, to reach the driver, to compile kernels, or to run collectives. */
export type LibraryKind = (typeof libraryKinds)[number]

/** Files that a user chose, by library. */
export type LibraryChoice = { readonly [Kind in LibraryKind]?: string | ReadonlyArray<string> | undefined }

interface LibraryFacts {
  readonly variable: string
  readonly fileNames: ReadonlyArray<string>
}

interface VendorFacts {
  readonly libraries: { readonly [Kind in LibraryKind]: LibraryFacts }
  /** Folders of wheels, below site-packages. */
  readonly wheels: ReadonlyArray<string>
  readonly folders: ReadonlyArray<string>
}

const hip = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"]

const vendors: { readonly [V in Vendor]: VendorFacts } = {
  cuda: {
    libraries: {
      runtime: {
        variable: "TENSORFERRY_CUDA_RUNTIME",
        fileNames: ["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"]
      },
      driver: { variable: "TENSORFERRY_CUDA_DRIVER", fileNames: ["libcuda.so.1", "libcuda.so"] },
      compiler: {
        variable: "TENSORFERRY_CUDA_NVRTC",
        fileNames: ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]
      },
      collectives: { variable: "TENSORFERRY_NCCL", fileNames: ["libnccl.so.2", "libnccl.so"] }
    },
    wheels: ["nvidia/cu13/lib", "nvidia/cuda_runtime/lib", "nvidia/cuda_nvrtc/lib", "nvidia/nccl/lib"],
    folders: ["/usr/local/cuda/lib64"]
  },
  rocm: {
    libraries: {
      // One library holds what the other vendor has in two.
      runtime: { variable: "TENSORFERRY_ROCM_RUNTIME", fileNames: hip },
      driver: { variable: "TENSORFERRY_ROCM_DRIVER", fileNames: hip },
      compiler: {
        variable: "TENSORFERRY_ROCM_HIPRTC",
        fileNames: ["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"]
      },
      collectives: { variable: "TENSORFERRY_RCCL", fileNames: ["librccl.so.1", "librccl.so"] }
    },
    wheels: ["_rocm_sdk_core/lib", "torch/lib"],
    folders: ["/opt/rocm/lib"]
  }
}

const list = (folder: string): ReadonlyArray<string> =>
  Result.getOrElse(
    Result.try(() => readdirSync(folder)),
    () => []
  )

const isFile = (file: string): boolean => statSync(file, { throwIfNoEntry: false })?.isFile() ?? false

const realPath = (file: string): string | undefined => Result.getOrUndefined(Result.try(() => realpathSync(file)))

/** Variables by name, as `process.env` has them. */
export type Environment = { readonly [name: string]: string | undefined }

const systemPrefixes = ["/usr/local", "/usr"]

/** Folders above `bin` and `lib` of the Pythons that a shell would find, and of active environments. */
const pythonPrefixes = (environment: Environment, system: ReadonlyArray<string>): ReadonlyArray<string> => {
  const active = [environment.VIRTUAL_ENV, environment.CONDA_PREFIX].filter((prefix) => prefix !== undefined)
  const onPath = (environment.PATH ?? "").split(":").flatMap((folder) => {
    const python = folder === "" ? undefined : path.join(folder, "python3")
    if (python === undefined || !isFile(python)) return []
    // A virtual environment's program is a link; its own packages and those it was made from both count.
    const behind = realPath(python)
    return [path.dirname(folder), ...(behind === undefined ? [] : [path.dirname(path.dirname(behind))])]
  })
  return [...new Set([...active, ...onPath, ...system])].filter((prefix) => prefix !== "")
}

/** Folders of installed packages, newest Python first. */
const packageFolders = (prefix: string): ReadonlyArray<string> =>
  ["lib", "lib64", "local/lib"].flatMap((lib) =>
    list(path.join(prefix, lib))
      .filter((name) => /^python3(\.\d+)?$/.test(name))
      .sort((a, b) => b.localeCompare(a, "en", { numeric: true }))
      .flatMap((name) => ["site-packages", "dist-packages"].map((folder) => path.join(prefix, lib, name, folder)))
  )

/** Folders in which libraries of a vendor may lie that the loader does not look into, in order. */
export const libraryFolders = (
  vendor: Vendor,
  environment: Environment = process.env,
  system: ReadonlyArray<string> = systemPrefixes
): ReadonlyArray<string> => searchFolders(vendors[vendor], environment, system)

/** Folders that are there: of wheels (below the packages of every Python), of the active environment, and those given. */
export const searchFolders = (
  { wheels, folders }: { readonly wheels: ReadonlyArray<string>; readonly folders: ReadonlyArray<string> },
  environment: Environment = process.env,
  system: ReadonlyArray<string> = systemPrefixes
): ReadonlyArray<string> => {
  const conda = environment.CONDA_PREFIX === undefined ? [] : [path.join(environment.CONDA_PREFIX, "lib")]
  const ofWheels = pythonPrefixes(environment, system)
    .flatMap(packageFolders)
    .flatMap((folder) => wheels.map((wheel) => path.join(folder, wheel)))
  return [...new Set([...ofWheels, ...conda, ...folders])].filter((folder) => list(folder).length > 0)
}

/** Names and paths to try, in order, for each library of a vendor. */
export const libraryNames = (
  vendor: Vendor,
  choice: LibraryChoice = {},
  environment: Environment = process.env,
  system: ReadonlyArray<string> = systemPrefixes
): LibraryNames => {
  const folders = libraryFolders(vendor, environment, system)
  const namesOf = (kind: LibraryKind): ReadonlyArray<string> => {
    const { variable, fileNames } = vendors[vendor].libraries[kind]
    const chosen = choice[kind]
    if (chosen !== undefined) return typeof chosen === "string" ? [chosen] : chosen
    const named = environment[variable]
    if (named !== undefined && named !== "") return [named]
    const found = folders.flatMap((folder) => fileNames.map((name) => path.join(folder, name))).filter(isFile)
    return [...fileNames, ...found]
  }
  return {
    runtime: namesOf("runtime"),
    driver: namesOf("driver"),
    compiler: namesOf("compiler"),
    collectives: namesOf("collectives")
  }
}

/** The variable that names a library, for remedies. */
export const libraryVariable = (vendor: Vendor, kind: LibraryKind): string => vendors[vendor].libraries[kind].variable

/** Every path that was looked at for a library: what the loader knows by a name, and the paths among the names. */
export const searchedPaths = (vendor: Vendor, names: ReadonlyArray<string>): ReadonlyArray<string> => {
  const plain = names.filter((name) => !name.includes("/"))
  return [
    ...names.filter((name) => name.includes("/")),
    ...(plain.length === 0 ? [] : findLibrary(plain, vendors[vendor].folders).tried)
  ]
}
