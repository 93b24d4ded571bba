// SPDX-License-Identifier: Apache-2.0
/** Who was judged and where: the facts around the results of a conformance run. */
import * as os from "node:os"
import { type BackendDescriptor, backendApiVersion } from "@tensorferry/core/backend/BackendDescriptor"
import { findManifest, loadBackendPackage } from "@tensorferry/core/backend/BackendLoader"
import { readSmallFile } from "@tensorferry/model/checkpoint/FileAccess"
import type { ConformanceReport } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { shippedPackages } from "../job/backends.ts"

const Manifest = Schema.fromJsonString(Schema.Struct({ name: Schema.String, version: Schema.String }))

const unknown = "unknown"

/** Name and version by a package's manifest, as `from` would import it. */
const manifestOf = (name: string, from: string): Effect.Effect<typeof Manifest.Type> =>
  Effect.gen(function* () {
    const text = new TextDecoder().decode(yield* readSmallFile(yield* findManifest(name, from)))
    return yield* Schema.decodeEffect(Manifest)(text)
  }).pipe(Effect.orElseSucceed(() => ({ name, version: unknown })))

/** The package that a descriptor came from: imported once, it is the same object. */
const packageOf = Effect.fnUntraced(function* (
  descriptor: BackendDescriptor,
  packages: ReadonlyArray<string>,
  from: string
) {
  const own = shippedPackages.find(([, descriptors]) => descriptors.includes(descriptor))
  if (own !== undefined) return yield* manifestOf(own[0], import.meta.url)
  for (const name of packages) {
    const loaded = yield* Effect.orElseSucceed(
      loadBackendPackage(name, from),
      (): ReadonlyArray<BackendDescriptor> => []
    )
    if (loaded.includes(descriptor)) return yield* manifestOf(name, from)
  }
  return { name: unknown, version: unknown }
})

export const reportFacts = Effect.fnUntraced(function* (
  descriptor: BackendDescriptor,
  packages: ReadonlyArray<string>,
  from: string
): Effect.fn.Return<
  Pick<ConformanceReport, "package" | "core" | "machine" | "deviceFamilies" | "capabilities" | "backend">
> {
  return {
    backend: descriptor.name,
    package: yield* packageOf(descriptor, packages, from),
    core: { version: (yield* manifestOf("@tensorferry/core", import.meta.url)).version, apiVersion: backendApiVersion },
    machine: {
      platform: process.platform,
      architecture: process.arch,
      kernel: os.release(),
      processor: os.cpus()[0]?.model ?? unknown,
      node: process.version
    },
    deviceFamilies: descriptor.deviceFamilies,
    // Through JSON, which is what a reader of the report gets.
    capabilities: JSON.parse(JSON.stringify(descriptor.capabilities)) as ConformanceReport["capabilities"]
  }
})
