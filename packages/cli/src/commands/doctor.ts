// SPDX-License-Identifier: Apache-2.0
/** `tensorferry doctor`: what this machine has, what each backend would do here, and the remedy where it cannot. */
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { chooseCopyBackend } from "@tensorferry/core/backend/BackendLayer"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type AutoPath, autoPaths } from "../backends/autoPaths.ts"
import { backendRegistry } from "../job/backends.ts"
import type { Fact } from "../machine/Fact.ts"
import { inspectMachine } from "../machine/inspectMachine.ts"
import { findLibraries, type LibraryFinding, searchedFolders } from "../machine/libraries.ts"
import { systemFiles } from "../machine/SystemFiles.ts"
import { withFailures } from "../output/CliFailure.ts"
import { table } from "../text/Table.ts"
import { printEither } from "../text/terminal.ts"
import { probeAll } from "./backends.ts"
import { backendPackages, json } from "./shared.ts"

/** A table is read by people: what a device or a library says of itself may be of any length, and is whole with `--json`. */
const shortened = (text: string): string => (text.length <= 160 ? text : `${text.slice(0, 159)}…`)

const inspect = Effect.gen(function* () {
  const files = systemFiles()
  const machine = yield* inspectMachine(files)
  const backends = yield* probeAll
  const libraries = findLibraries(
    files,
    backends.map(({ name, probe }) => ({ name, tried: probe._tag === "Unavailable" ? probe.tried : [] }))
  )
  const automatic = yield* Effect.result(chooseCopyBackend("auto", "cpu"))
  const paths = yield* Effect.orElseSucceed(autoPaths, (): ReadonlyArray<AutoPath> => [])
  return { ...machine, backends, libraries, automatic, paths }
})

type Findings = Effect.Success<typeof inspect>

const factTable = (heading: string, facts: ReadonlyArray<Fact>): string =>
  table(
    [heading, ""],
    facts.map(({ name, summary }) => [name, summary])
  )

const libraryTable = (libraries: ReadonlyArray<LibraryFinding>): string =>
  table(
    ["library", "version", "found", "for"],
    libraries.map(({ library, version, found, backends }) => [
      library,
      found === undefined ? "" : (version ?? "unknown"),
      found ?? "no",
      backends.join(", ")
    ])
  )

const backendTable = ({ backends }: Findings): string =>
  table(
    ["backend", "state", "devices", "can do here"],
    backends.map(({ name, deviceFamilies, offers, probe }) => [
      name,
      probe._tag === "Available" ? "available" : "unavailable",
      deviceFamilies.join(", "),
      probe._tag === "Available"
        ? shortened(`${offers.join(", ")}: ${probe.detail}`)
        : shortened(`nothing: ${probe.cause}`)
    ])
  )

/** What a machine does without a backend that it might have. */
const costs: Readonly<Record<string, string>> = {
  "torch-copy": "nothing moves between processes of this host",
  cuda: "no GPU memory moves",
  "cuda-ipc": "no GPU memory moves",
  nccl: "no GPU memory moves",
  nvshmem: "nothing is written into symmetric memory of GPUs",
  xpu: "Intel devices get no replay batches",
  tcp: "hosts are joined by ucx alone",
  ucx: "hosts are joined over TCP, without RDMA"
}

/** One remedy per line, with everything that it helps, and what is missed until then. */
const remedies = ({
  machine,
  sharing,
  network,
  companions,
  devices,
  backends,
  paths
}: Findings): ReadonlyArray<string> => {
  const helped = new Map<string, Array<string>>()
  const missed = new Map<string, Set<string>>()
  const add = (name: string, remedy: string | undefined, cost?: string): void => {
    if (remedy === undefined) return
    helped.set(remedy, [...(helped.get(remedy) ?? []), name])
    if (cost !== undefined) missed.set(remedy, (missed.get(remedy) ?? new Set()).add(cost))
  }
  for (const { name, remedy } of [...machine, ...sharing, ...network, ...companions, ...devices]) add(name, remedy)
  for (const { name, probe } of backends) if (probe._tag === "Unavailable") add(name, probe.remedy, costs[name])
  const isKnown = (backend: string) =>
    backends.some(({ name, probe }) => name === backend && probe._tag === "Unavailable")
  for (const { backend, remedy } of paths) if (!isKnown(backend)) add(`auto by ${backend}`, remedy)
  return [...helped].map(([remedy, names]) => {
    const without = [...(missed.get(remedy) ?? [])].join("; ")
    return `- ${names.join(", ")}: ${remedy}${without === "" ? "" : ` Without: ${without}.`}`
  })
}

/** How hosts are joined, where they are. */
const betweenHosts = (paths: ReadonlyArray<AutoPath>): string => {
  const wires = paths.filter(({ between }) => between === "hosts")
  const names = wires.flatMap(({ backend, ok }) => (ok ? [backend] : []))
  if (wires.length === 0) return ""
  return names.length === 0
    ? `, and nothing between hosts (${wires.map(({ backend }) => backend).join(", ")}: see the remedies)`
    : `, and between hosts the first of ${names.join(", ")} that both have`
}

const describe = (findings: Findings): string => {
  const { machine, sharing, network, companions, devices, libraries, automatic, paths } = findings
  const found = remedies(findings)
  return [
    factTable("machine", machine),
    factTable("between processes", sharing),
    network.length === 0 ? "network: the kernel states no interface" : factTable("network", network),
    factTable("bus and Python", companions),
    devices.length === 0 ? "devices: no driver reports a GPU" : factTable("device", devices),
    ...(libraries.length === 0
      ? []
      : [`${libraryTable(libraries)}\nsearched: ${searchedFolders(libraries).join(", ")}`]),
    `${backendTable(findings)}\n${
      Result.isSuccess(automatic)
        ? `--backend auto uses ${automatic.success.descriptor.name} (${automatic.success.reason})${betweenHosts(paths)}`
        : `--backend auto fails: ${automatic.failure.message}`
    }`,
    ...(found.length === 0 ? [] : [`remedies\n${found.join("\n")}`])
  ].join("\n\n")
}

const byName = (facts: ReadonlyArray<Fact>) =>
  Object.fromEntries(facts.map(({ name, ...rest }) => [name, { ...rest, ok: rest.remedy === undefined }]))

const asJson = ({
  machine,
  sharing,
  network,
  companions,
  devices,
  libraries,
  backends,
  automatic,
  paths
}: Findings) => ({
  ok: true,
  machine: byName(machine),
  sharing: byName(sharing),
  network: byName(network),
  companions: byName(companions),
  devices: devices.map(({ summary, remedy, data }) => ({ ...data, summary, ok: remedy === undefined, remedy })),
  libraries,
  automatic: Result.isSuccess(automatic) ? automatic.success.descriptor.name : null,
  paths,
  backends
})

export const doctor = Command.make("doctor", { backendPackages, json }, (flags) =>
  withFailures(
    flags,
    Effect.gen(function* () {
      const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
      const findings = yield* Effect.provide(inspect, backendRegistry(flags.backendPackages, from))
      yield* printEither(
        flags.json,
        () => asJson(findings),
        () => describe(findings)
      )
    })
  )
)
