// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers: the backend `nvshmem` over the engine of @tensorferry/gpu. Importing it loads no addon and opens no
 * library.
 */

import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { lazyLayer } from "@tensorferry/core/backend/LazyLayer"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { loadAddon as loadDeviceAddon } from "@tensorferry/gpu/Addon"
import { tensorEngineCapabilities } from "@tensorferry/gpu/capabilities"
import { discover } from "@tensorferry/gpu/discover"
import { orUnavailable } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { loadAddon, packageFolder, packageName } from "./Addon.ts"
import { copyDriverCapabilities } from "./capabilities.ts"
import { libraryNames, libraryVariable, searchedPaths } from "./libraries.ts"
import { deviceOptions, NvshmemOptions, optionNames } from "./options.ts"

/** The contracts that this package was written for. */
const apiVersion = 1

/** Builds a layer from options that may come from anywhere. */
const withOptions = optionsLayer(NvshmemOptions, packageName, `The options are ${optionNames.join(", ")}.`, apiVersion)

/** Opens the libraries and counts devices; joins no job. */
const probe: Effect.Effect<ProbeResult> = Effect.gen(function* () {
  const [devices, addon] = [yield* loadDeviceAddon, yield* loadAddon]
  const found = discover(devices, deviceOptions({}))
  if (Result.isFailure(found)) return { _tag: "Unavailable" as const, ...found.failure }
  const names = libraryNames()
  const opened = addon.openLibrary(names)
  const problem = opened.code === "Ok" ? opened.value.problem : opened.detail
  if (opened.code !== "Ok" || problem !== undefined) {
    return {
      _tag: "Unavailable" as const,
      tried: searchedPaths(names),
      cause: `NVSHMEM's host library cannot be opened: ${problem}`,
      remedy: `Install nvidia-nvshmem-cu13 or -cu12, or name the file of libnvshmem_host in ${libraryVariable}.`
    }
  }
  return {
    _tag: "Available" as const,
    detail: `${found.success.count} devices; ${opened.value.path}.`,
    versions: { addon: String(addon.abiVersion), nvshmem: opened.value.version ?? "unknown" }
  }
}).pipe(orUnavailable(packageFolder))

/** What the package registers: one backend, for NVIDIA devices. */
export const descriptors: ReadonlyArray<BackendDescriptor> = [
  {
    name: packageName,
    apiVersion,
    deviceFamilies: ["cuda"],
    capabilities: { tensorEngine: tensorEngineCapabilities, copyDriver: copyDriverCapabilities },
    options: NvshmemOptions,
    probe,
    tensorEngine: (options) =>
      withOptions(options, (decoded) =>
        lazyLayer(
          packageName,
          () => import("@tensorferry/gpu/TensorEngine"),
          ({ layer }) => layer(deviceOptions(decoded), packageName)
        )
      ),
    copyDriver: (options) =>
      withOptions(options, (decoded) =>
        lazyLayer(
          packageName,
          () => import("./CopyDriver.ts"),
          ({ layer }) => layer(decoded)
        )
      )
  }
]
