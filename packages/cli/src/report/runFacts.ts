// SPDX-License-Identifier: Apache-2.0
/** What a run ran on, for its record: programs, machine, devices, and the versions that the backend's probe reports. */
import * as os from "node:os"
import { fileURLToPath } from "node:url"
import { chooseCopyBackend } from "@tensorferry/core/backend/BackendLayer"
import { probeBackend } from "@tensorferry/core/backend/Probe"
import * as Effect from "effect/Effect"
import { findDevices } from "../machine/devices.ts"
import { systemFiles } from "../machine/SystemFiles.ts"
import { formatBytes } from "../text/Table.ts"
import type { RunRecord } from "./RunRecord.ts"

/** Of this package, as its package.json says; beside both the sources and what they are compiled to. */
const ownVersion = (): string => {
  const text = systemFiles().read(fileURLToPath(new URL("../../package.json", import.meta.url)))
  return /"version":\s*"([^"]+)"/.exec(text ?? "")?.[1] ?? "unknown"
}

export const runFacts = (backend: string) =>
  Effect.gen(function* () {
    const { descriptor } = yield* chooseCopyBackend(backend, "cpu")
    const probe = yield* probeBackend(descriptor)
    const [processor] = os.cpus()
    const facts: RunRecord["facts"] = [
      { name: "tensorferry", value: ownVersion() },
      { name: "Node", value: process.version },
      { name: "system", value: `${os.type()} ${os.release()}, ${os.arch()}` },
      { name: "processors", value: `${os.availableParallelism()} × ${processor?.model ?? "unknown"}` },
      { name: "memory", value: formatBytes(os.totalmem()) },
      ...findDevices(systemFiles()).map(({ address, vendor, model, driver }) => ({
        name: `device ${address}`,
        value: [`${vendor} ${model}`, ...(driver === undefined ? [] : [driver])].join(", ")
      })),
      ...(probe._tag === "Available"
        ? [
            { name: `backend ${descriptor.name}`, value: probe.detail },
            ...Object.entries(probe.versions).map(([name, value]) => ({ name, value }))
          ]
        : [])
    ]
    return facts
  })
