// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers. Importing it loads no addon.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { lazyLayer } from "@tensorferry/core/backend/LazyLayer"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { joinWires } from "@tensorferry/native/joined/JoinedDriver"
import * as Effect from "effect/Effect"
import { backendName, loadAddon, packageFolder } from "./Addon.ts"
import * as CopyDriver from "./CopyDriver.ts"
import * as HostMemory from "./HostMemory.ts"
import { TorchCopyOptions } from "./options.ts"
import * as TensorEngine from "./TensorEngine.ts"

/** The contracts that this package was written for. */
const apiVersion = 1

/** Builds a layer from options that may come from anywhere. */
const withOptions = optionsLayer(
  TorchCopyOptions,
  backendName,
  "The options are threads (1 to 64), forbid (a list of paths) and deferred (true or false).",
  apiVersion
)

const tried = [`${packageFolder}build`, `${packageFolder}prebuilds`, "a memory file of one page"]

/** Loads the addon and makes one memory file. */
const probe: Effect.Effect<ProbeResult> = Effect.gen(function* () {
  const addon = yield* loadAddon
  const memory = yield* HostMemory.make(addon)
  yield* memory.allocate(1)
  return {
    _tag: "Available" as const,
    detail: `Host memory, ${addon.instructionSet} kernels.`,
    versions: { addon: String(addon.abiVersion), instructionSet: addon.instructionSet }
  }
}).pipe(
  Effect.scoped,
  Effect.catch(({ reason }) =>
    Effect.succeed({ _tag: "Unavailable" as const, tried, cause: reason.detail, remedy: reason.remedy })
  )
)

/** The embedded default: every device family that no other backend claims, with the bytes moved by the host. */
export const descriptor: BackendDescriptor = {
  name: backendName,
  apiVersion,
  deviceFamilies: ["*", "cpu"],
  capabilities: {
    tensorEngine: TensorEngine.capabilities,
    copyDriver: CopyDriver.capabilities,
    replayTransfer: true
  },
  options: TorchCopyOptions,
  probe,
  tensorEngine: (options) =>
    withOptions(options, ({ threads }) => TensorEngine.layer(threads === undefined ? {} : { threads })),
  hostMemory: (options) => withOptions(options, () => HostMemory.layer),
  copyDriver: (options) => withOptions(options, CopyDriver.layer),
  stagedDriver: (options, hostEngine, staging) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("@tensorferry/native/staged/StagedDriver"),
        ({ stagedDriverLayer }) => stagedDriverLayer(CopyDriver.layer(decoded), hostEngine, staging)
      )
    ),
  join: (options, wires) => joinWires(descriptor, options, wires),
  replayTransfer: (device, ringDepth, options, familyEngine) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("./ReplayDevice.ts"),
        ({ layer }) => layer(device, ringDepth, decoded, familyEngine)
      )
    ),
  replayTesting: (device, options, familyEngine) =>
    withOptions(options, (decoded) =>
      lazyLayer(
        backendName,
        () => import("./ReplayTesting.ts"),
        ({ layer }) => layer(device, decoded, familyEngine)
      )
    )
}

/** All backends of this package, as a registry takes them. */
export const descriptors: ReadonlyArray<BackendDescriptor> = [descriptor]
