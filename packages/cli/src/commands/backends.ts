/** `tensorferry backends`: which backends there are, which work here, and what the others need. */
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import * as Console from "effect/Console"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import { backendRegistry } from "../job/backends.ts"
import { withFailures } from "../output/CliFailure.ts"
import { table } from "../output/Table.ts"
import { backendPackages, json } from "./shared.ts"

/** Probes every registered backend. */
export const probeAll = Effect.gen(function* () {
  const registry = yield* BackendRegistry
  return yield* Effect.forEach(registry.descriptors, (descriptor) =>
    Effect.map(descriptor.probe, (probe) => ({
      name: descriptor.name,
      deviceFamilies: descriptor.deviceFamilies,
      offers: (["tensorEngine", "copyDriver", "hostMemory", "replayTransfer"] as const).filter(
        (service) => descriptor[service] !== undefined
      ),
      probe
    }))
  )
})

export const backends = Command.make("backends", { backendPackages, json }, (flags) =>
  withFailures(
    flags.json,
    Effect.gen(function* () {
      const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
      const found = yield* Effect.provide(probeAll, backendRegistry(flags.backendPackages, from))
      if (flags.json) {
        yield* Console.log(JSON.stringify({ ok: true, backends: found }, null, 2))
        return
      }
      const rows = found.map(({ name, deviceFamilies, offers, probe }) => [
        name,
        probe._tag === "Available" ? "available" : "unavailable",
        deviceFamilies.join(", "),
        offers.join(", ") || "nothing yet",
        probe._tag === "Available" ? probe.detail : probe.cause
      ])
      yield* Console.log(table(["backend", "state", "devices", "offers", "detail"], rows))
    })
  )
)
