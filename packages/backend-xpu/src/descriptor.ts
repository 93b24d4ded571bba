// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers. Importing it loads no addon and opens no library.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { lazyLayer } from "@tensorferry/core/backend/LazyLayer"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import * as Effect from "effect/Effect"
import { backendName, loadAddon, packageFolder } from "./Addon.ts"
import { capabilities } from "./capabilities.ts"
import { optionNames, XpuOptions } from "./options.ts"

/** The contracts that this package was written for. */
const apiVersion = 1

/** Builds a layer from options that may come from anywhere. */
const withOptions = optionsLayer(XpuOptions, backendName, `The options are ${optionNames.join(", ")}.`, apiVersion)

const unavailable = (tried: ReadonlyArray<string>, cause: string, remedy: string): ProbeResult => ({
  _tag: "Unavailable",
  tried,
  cause,
  remedy
})

/** Opens a library, lists devices and opens the first, to see what it can do. */
const probe: Effect.Effect<ProbeResult> = Effect.gen(function* () {
  const addon = yield* loadAddon
  const [{ discover }, { openXpu }] = yield* Effect.promise(() =>
    Promise.all([import("./discover.ts"), import("./Xpu.ts")])
  )
  const found = yield* discover(addon, {})
  const xpu = yield* openXpu(addon, {}, 0)
  const devices = found.devices.map(({ name, kind }, index) => `${backendName}:${index} ${name} (${kind})`)
  const lacking = Object.entries(xpu.capabilities).flatMap(([name, has]) => (has ? [] : [name]))
  return {
    _tag: "Available" as const,
    detail:
      `${devices.join(", ")}. By ${found.driver}: ${found.reason}.` +
      (lacking.length === 0 ? "" : ` The driver is without ${lacking.join(", ")}.`),
    versions: { addon: String(addon.abiVersion), driver: `${found.driver} ${xpu.facts.driverVersion}` }
  }
}).pipe(
  Effect.scoped,
  Effect.catch((error) =>
    Effect.succeed(
      "reason" in error
        ? unavailable([`${packageFolder}build`, `${packageFolder}prebuilds`], error.reason.detail, error.reason.remedy)
        : unavailable(error.tried, error.cause, error.remedy)
    )
  )
)

/** The backend for Intel devices: an engine and replay transfers. */
export const descriptor: BackendDescriptor = {
  name: backendName,
  apiVersion,
  deviceFamilies: [backendName],
  capabilities: { tensorEngine: capabilities, replayTransfer: true },
  options: XpuOptions,
  probe,
  tensorEngine: (options) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("./TensorEngine.ts"),
        ({ layer }) => layer(decoded)
      )
    ),
  replayTransfer: (device, ringDepth, options) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("./ReplayDevice.ts"),
        ({ layer }) => layer(device, ringDepth, decoded)
      )
    ),
  replayTesting: (device, options) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("./ReplayTesting.ts"),
        ({ layer }) => layer(device, decoded)
      )
    )
}

/** All backends of this package, as a registry takes them. */
export const descriptors: ReadonlyArray<BackendDescriptor> = [descriptor]
