// SPDX-License-Identifier: Apache-2.0
/**
 * Finds out whose devices this machine has: opens the vendors' libraries in turn and counts.
 *
 * Invariant: says what was tried, what was missing and what helps, whichever step ends it; nothing on a device is touched.
 */
import * as Result from "effect/Result"
import type { Addon, LibraryFound, NativeLibraries, OpenedLibraries, Vendor } from "./Addon.ts"
import { libraryNames, libraryVariable, searchedPaths } from "./libraries.ts"
import type { GpuOptions } from "./options.ts"

/** The vendor whose devices are used, and its libraries. */
export interface Discovered {
  readonly vendor: Vendor
  readonly libraries: NativeLibraries
  readonly opened: OpenedLibraries
  /** Devices, at least one. */
  readonly count: number
}

/** Why there are no devices: the files tried, what was missing, and what helps. */
export interface Missing {
  readonly tried: ReadonlyArray<string>
  readonly cause: string
  readonly remedy: string
}

const nouns: Record<Vendor, string> = { cuda: "NVIDIA", rocm: "AMD" }

const order: ReadonlyArray<Vendor> = ["cuda", "rocm"]

const isMissing = (found: LibraryFound): boolean => found.path === undefined || found.problem !== undefined

/** In few words where the library is simply not there: what was tried is listed beside it. */
const problemOf = (kind: "runtime" | "driver", { problem = "not found" }: LibraryFound): string => {
  const parts = problem.replace(/\.$/, "").split("; ")
  const notable = parts.find((part) => !part.includes("No such file or directory"))
  return notable === undefined ? `no ${kind}` : `${kind}: ${notable}`
}

const inVendor = (addon: Addon, vendor: Vendor, options: GpuOptions): Result.Result<Discovered, Missing> => {
  const names = libraryNames(vendor, options.libraries)
  const answer = addon.openLibraries(vendor, names)
  if (answer.code !== "Ok") {
    return Result.fail({
      tried: [],
      cause: `${answer.op}: ${answer.detail}`,
      remedy: "Correct the option libraries: names and paths of files."
    })
  }
  const opened = answer.value
  const missing = (["runtime", "driver"] as const).filter((kind) => isMissing(opened[kind]))
  if (opened.libraries === undefined || missing.length > 0) {
    const problems = missing.map((kind) => problemOf(kind, opened[kind]))
    return Result.fail({
      tried: missing.flatMap((kind) => searchedPaths(vendor, names[kind])),
      cause: `The ${nouns[vendor]} libraries cannot be opened (${problems.join("; ")}).`,
      remedy:
        `Install the ${nouns[vendor]} driver and run time, or name their files in ` +
        `${missing.map((kind) => libraryVariable(vendor, kind)).join(" and ")}.`
    })
  }
  const tried = [opened.runtime, opened.driver].flatMap(({ path }) => (path === undefined ? [] : [path]))
  const count = addon.deviceCount(opened.libraries)
  if (count.code !== "Ok" || count.value === 0) {
    return Result.fail({
      tried,
      cause: `The ${nouns[vendor]} driver shows no device${count.code === "Ok" ? "" : ` (${count.op}: ${count.detail})`}.`,
      remedy: "Load the driver, pass a device into the container, or correct the variable that hides devices."
    })
  }
  return Result.succeed({ vendor, libraries: opened.libraries, opened, count: count.value })
}

/** The first vendor that has a device, or the one that the options name. */
export const discover = (addon: Addon, options: GpuOptions): Result.Result<Discovered, Missing> => {
  const faults: Array<Missing> = []
  for (const vendor of options.vendor === undefined ? order : [options.vendor]) {
    const found = inVendor(addon, vendor, options)
    if (Result.isSuccess(found)) return found
    faults.push(found.failure)
    // Named files belong to one vendor; looking for the other's names in them would only confuse.
    if (options.libraries !== undefined && options.vendor === undefined) break
  }
  return Result.fail({
    tried: [...new Set(faults.flatMap(({ tried }) => tried))],
    cause: faults.map(({ cause }) => cause).join(" "),
    remedy: faults[0]!.remedy
  })
}
