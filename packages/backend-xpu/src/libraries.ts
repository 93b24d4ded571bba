// SPDX-License-Identifier: Apache-2.0
/**
 * Where the two libraries are looked for: the option, the environment variable, what the loader finds by itself. An explicit
 * choice is the only one tried. Nothing is opened here.
 */
import { findLibrary } from "@tensorferry/native/LibrarySearch"
import type { DriverName } from "./Addon.ts"
import type { Environment, XpuOptions } from "./options.ts"

interface DriverLibrary {
  readonly title: string
  readonly variable: string
  readonly fileNames: ReadonlyArray<string>
  readonly option: keyof NonNullable<XpuOptions["libraries"]>
  /** What brings the library and a driver for it. */
  readonly remedy: string
}

export const driverLibraries: Readonly<Record<DriverName, DriverLibrary>> = {
  "level-zero": {
    title: "Level Zero",
    variable: "TENSORFERRY_LEVEL_ZERO",
    fileNames: ["libze_loader.so.1"],
    option: "levelZero",
    remedy: "Install the Level Zero loader (Debian: libze1) and Intel's driver for it (intel-level-zero-gpu)"
  },
  opencl: {
    title: "OpenCL",
    variable: "TENSORFERRY_OPENCL",
    fileNames: ["libOpenCL.so.1"],
    option: "openCl",
    remedy: "Install an OpenCL loader (Debian: ocl-icd-libopencl1) and a driver for it (pocl-opencl-icd for processors)"
  }
}

/** Names and paths to try, in order. */
export const libraryNames = (
  driver: DriverName,
  options: XpuOptions,
  environment: Environment = process.env
): ReadonlyArray<string> => {
  const { option, variable, fileNames } = driverLibraries[driver]
  const chosen = options.libraries?.[option]
  if (chosen !== undefined) return typeof chosen === "string" ? [chosen] : chosen
  const named = environment[variable]
  return named === undefined || named === "" ? fileNames : [named]
}

/** Every path that was looked at: what the loader knows by a name, and the paths among the names. */
export const searchedPaths = (names: ReadonlyArray<string>): ReadonlyArray<string> => {
  const plain = names.filter((name) => !name.includes("/"))
  return [...names.filter((name) => name.includes("/")), ...(plain.length === 0 ? [] : findLibrary(plain).tried)]
}
