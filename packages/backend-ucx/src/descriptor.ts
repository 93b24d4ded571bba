// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers. Importing it loads neither the addon nor UCX.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { orUnavailable } from "@tensorferry/native/NativeAddon"
import { stagedDriverLayer } from "@tensorferry/native/staged/StagedDriver"
import * as Effect from "effect/Effect"
import { type Addon, backendName, loadAddon, packageFolder } from "./Addon.ts"
import * as CopyDriver from "./CopyDriver.ts"
import { configurationOf } from "./Fabric.ts"
import { libraryNames, type OpenedLibrary, openLibrary } from "./library.ts"
import { UcxOptions } from "./options.ts"

/** The contracts that this package was written for. */
const apiVersion = 1

/** Builds a layer from options that may come from anywhere. */
const withOptions = optionsLayer(
  UcxOptions,
  backendName,
  "The options are library, transports, devices, interfaces (a list), transfer (auto, put, messages or emulated-put), stagingBytes and token.",
  apiVersion
)

/** Transports that UCX has here, whether or not there is a token. */
const transportsHere = (addon: Addon, { library }: OpenedLibrary): string => {
  const configuration = configurationOf({}, undefined)
  const names = configuration.map(([name]) => name)
  const values = configuration.map(([, value]) => value)
  const opened = addon.createEndpoint(library, 0, 1000, 1, 1, 0, names, values)
  if (opened.code !== "Ok") return `no transport works: ${opened.detail}`
  addon.closeEndpoint(opened.value.endpoint)
  return `transports ${opened.value.transports.join(", ")}`
}

const probe: Effect.Effect<ProbeResult> = Effect.flatMap(loadAddon, (addon) =>
  Effect.match(openLibrary(addon, {}), {
    onFailure: ({ reason }): ProbeResult => ({
      _tag: "Unavailable",
      tried: [...libraryNames({})],
      cause: reason.detail,
      remedy: reason.remedy
    }),
    onSuccess: (library): ProbeResult => ({
      _tag: "Available",
      detail: `${library.path}, ${transportsHere(addon, library)}.`,
      versions: { addon: String(addon.abiVersion), ucx: library.version }
    })
  })
).pipe(orUnavailable(packageFolder))

/** Host memory between ranks that UCX joins. It owns no memory: the engine of the host does. */
export const descriptor: BackendDescriptor = {
  name: backendName,
  apiVersion,
  deviceFamilies: [],
  capabilities: { copyDriver: CopyDriver.capabilities },
  options: UcxOptions,
  probe,
  wireOrder: 10,
  copyDriver: (options) => withOptions(options, CopyDriver.layer),
  stagedDriver: (options, hostEngine, staging) =>
    withOptions(options, (decoded) => stagedDriverLayer(CopyDriver.layer(decoded), hostEngine, staging))
}

/** All backends of this package, as a registry takes them. */
export const descriptors: ReadonlyArray<BackendDescriptor> = [descriptor]
