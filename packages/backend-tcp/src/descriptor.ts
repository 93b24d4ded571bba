// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers. Importing it loads no addon.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { lazyLayer } from "@tensorferry/core/backend/LazyLayer"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { wireCapabilities } from "@tensorferry/native/driver/wireCapabilities"
import { orUnavailable } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import { backendName, loadAddon, packageFolder } from "./Addon.ts"
import { TcpOptions } from "./options.ts"

/** The contracts that this package was written for. */
const apiVersion = 1

/** Builds a layer from options that may come from anywhere. */
const withOptions = optionsLayer(
  TcpOptions,
  backendName,
  "The options are lanes (1 to 64), threads (1 to 16), interfaces and addresses (lists), port and token.",
  apiVersion
)

const probe: Effect.Effect<ProbeResult> = Effect.map(loadAddon, ({ abiVersion }) => ({
  _tag: "Available" as const,
  detail: "TCP over IPv4 and IPv6.",
  versions: { addon: String(abiVersion) }
})).pipe(orUnavailable(packageFolder))

/** The driver, imported when it is built. */
const driverLayer = (options: TcpOptions) =>
  lazyLayer(
    backendName,
    () => import("./CopyDriver.ts"),
    ({ layer }) => layer(options)
  )

/** Host memory between hosts. It owns no memory: the engine of the host does. */
export const descriptor: BackendDescriptor = {
  name: backendName,
  apiVersion,
  deviceFamilies: [],
  capabilities: { copyDriver: wireCapabilities },
  options: TcpOptions,
  probe,
  wireOrder: 20,
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
