// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers: three backends over one engine and one driver. Importing it loads no addon and opens no library.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { lazyLayer } from "@tensorferry/core/backend/LazyLayer"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { type Addon, loadAddon, packageFolder } from "@tensorferry/gpu/Addon"
import { tensorEngineCapabilities } from "@tensorferry/gpu/capabilities"
import { type Discovered, discover } from "@tensorferry/gpu/discover"
import { libraryNames, libraryVariable, searchedPaths } from "@tensorferry/gpu/libraries"
import { joinWires } from "@tensorferry/native/joined/JoinedDriver"
import { orUnavailable } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { copyDriverCapabilitiesOf } from "./capabilities.ts"
import { CudaOptions, optionNames } from "./options.ts"
import type { DriverKind } from "./planning/route.ts"

/** The contracts that this package was written for. */
const apiVersion = 1

/** Builds a layer from options that may come from anywhere. */
const withOptions = (kind: DriverKind) =>
  optionsLayer(CudaOptions, kind, `The options are ${optionNames.join(", ")}.`, apiVersion)

const versionsOf = (addon: Addon, { opened, vendor }: Discovered): Record<string, string> => {
  const versions: Record<string, string> = { addon: String(addon.abiVersion), vendor }
  for (const kind of ["runtime", "driver", "compiler", "collectives"] as const) {
    const { version } = opened[kind]
    if (version !== undefined) versions[kind] = version
  }
  return versions
}

const available = (addon: Addon, found: Discovered): ProbeResult => {
  const names = Array.from({ length: found.count }, (_, ordinal) => {
    const facts = addon.deviceFacts(found.libraries, ordinal)
    return `${found.vendor}:${ordinal} ${facts.code === "Ok" ? facts.value.name : `(${facts.op}: ${facts.detail})`}`
  })
  const { collectives } = found.opened
  const lacking = collectives.path === undefined ? ` No collectives: ${collectives.problem ?? "not found"}.` : ""
  return { _tag: "Available", detail: `${names.join(", ")}.${lacking}`, versions: versionsOf(addon, found) }
}

/** Opens the libraries and counts devices. `nccl` also needs its own library. */
const probe = (kind: DriverKind): Effect.Effect<ProbeResult> =>
  Effect.gen(function* () {
    const addon = yield* loadAddon
    const found = discover(addon, {})
    if (Result.isFailure(found)) return { _tag: "Unavailable" as const, ...found.failure }
    const { vendor, opened } = found.success
    if (kind !== "nccl" || opened.collectives.path !== undefined) return available(addon, found.success)
    return {
      _tag: "Unavailable" as const,
      tried: searchedPaths(vendor, libraryNames(vendor).collectives),
      cause: `The library for collectives cannot be opened: ${opened.collectives.problem ?? "not found"}.`,
      remedy: `Install it, or name its file in ${libraryVariable(vendor, "collectives")}.`
    }
  }).pipe(orUnavailable(packageFolder))

const descriptor = (kind: DriverKind): BackendDescriptor => ({
  name: kind,
  apiVersion,
  deviceFamilies: ["cuda", "rocm"],
  capabilities: { tensorEngine: tensorEngineCapabilities, copyDriver: copyDriverCapabilitiesOf(kind) },
  options: CudaOptions,
  probe: probe(kind),
  tensorEngine: (options) =>
    withOptions(kind)(options, (decoded) =>
      lazyLayer(
        kind,
        () => import("@tensorferry/gpu/TensorEngine"),
        ({ layer }) => layer(decoded, kind)
      )
    ),
  copyDriver: (options) =>
    withOptions(kind)(options, (decoded) =>
      lazyLayer(
        kind,
        () => import("./CopyDriver.ts"),
        ({ layer }) => layer(kind, decoded)
      )
    )
})

/** Between hosts it takes collectives, where all ranks have their library, else wires. */
const joinOver =
  (owner: BackendDescriptor): NonNullable<BackendDescriptor["join"]> =>
  (options, wires) =>
    joinWires(
      owner,
      options,
      wires,
      Effect.map(probe("nccl"), ({ _tag }) => _tag === "Available")
    )

/** Replay needs one owner of the family, whatever copies between ranks. */
const withReplay = (owner: BackendDescriptor): BackendDescriptor => ({
  ...owner,
  join: joinOver(owner),
  capabilities: { ...owner.capabilities, replayTransfer: true },
  replayTransfer: (device, ringDepth, options) =>
    withOptions("cuda")(options, (decoded) =>
      lazyLayer(
        owner.name,
        () => import("./ReplayTransfer.ts"),
        ({ layer }) => layer(device, ringDepth, decoded)
      )
    ),
  replayTesting: (device, options) =>
    withOptions("cuda")(options, (decoded) =>
      lazyLayer(
        owner.name,
        () => import("./ReplayTesting.ts"),
        ({ layer }) => layer(device, decoded, owner.name)
      )
    )
})

/** The first is the one to take unless there is a reason: by the peer's memory on one host, by collectives beyond. */
export const descriptors: ReadonlyArray<BackendDescriptor> = [
  withReplay(descriptor("cuda")),
  descriptor("cuda-ipc"),
  descriptor("nccl")
]
