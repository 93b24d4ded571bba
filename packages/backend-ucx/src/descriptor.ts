// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers. Importing it loads neither the addon nor UCX.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { lazyLayer } from "@tensorferry/core/backend/LazyLayer"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { wireCapabilities } from "@tensorferry/native/driver/wireCapabilities"
import { orUnavailable } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import { type Addon, backendName, loadAddon, packageFolder } from "./Addon.ts"
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
const transportsHere = (
  addon: Addon,
  { library }: OpenedLibrary,
  configuration: ReturnType<typeof import("./Fabric.ts").configurationOf>
): string => {
  const names = configuration.map(([name]) => name)
  const values = configuration.map(([, value]) => value)
  const opened = addon.createEndpoint(library, 0, 1000, 1, 1, 0, names, values)
  if (opened.code !== "Ok") return `no transport works: ${opened.detail}`
  addon.closeEndpoint(opened.value.endpoint)
  return `transports ${opened.value.transports.join(", ")}`
}

const probe: Effect.Effect<ProbeResult> = Effect.gen(function* () {
  const addon = yield* loadAddon
  const { configurationOf } = yield* Effect.promise(() => import("./Fabric.ts"))
  return yield* Effect.match(openLibrary(addon, {}), {
    onFailure: ({ reason }): ProbeResult => ({
      _tag: "Unavailable",
      tried: [...libraryNames({})],
      cause: reason.detail,
      remedy: reason.remedy
    }),
    onSuccess: (library): ProbeResult => ({
      _tag: "Available",
      detail: `${library.path}, ${transportsHere(addon, library, configurationOf({}, undefined))}.`,
      versions: { addon: String(addon.abiVersion), ucx: library.version }
    })
  })
}).pipe(orUnavailable(packageFolder))

/** The driver, imported when it is built. */
const driverLayer = (options: UcxOptions) =>
  lazyLayer(
    backendName,
    () => import("./CopyDriver.ts"),
    ({ layer }) => layer(options)
  )

/** Host memory between ranks that UCX joins. It owns no memory: the engine of the host does. */
export const descriptor: BackendDescriptor = {
  name: backendName,
  apiVersion,
  deviceFamilies: [],
  capabilities: { copyDriver: wireCapabilities },
  options: UcxOptions,
  probe,
  wireOrder: 10,
  copyDriver: (options) => withOptions(options, driverLayer),
  stagedDriver: (options, hostEngine, staging) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("@tensorferry/native/staged/StagedDriver"),
        ({ stagedDriverLayer }) => stagedDriverLayer(driverLayer(decoded), hostEngine, staging)
      )
    )
}

/** All backends of this package, as a registry takes them. */
export const descriptors: ReadonlyArray<BackendDescriptor> = [descriptor]
